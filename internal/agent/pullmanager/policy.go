// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package pullmanager

import (
	"fmt"
	"strings"

	"github.com/distribution/reference"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// policy decides whether a pod needs credentials for an image that is on the node.
type policy struct {
	kind     configv1beta1.ImagePullCredentialsVerificationPolicy
	exact    map[string]bool
	prefixes []string
}

func newPolicy(kind configv1beta1.ImagePullCredentialsVerificationPolicy, allowlist []string) (*policy, error) {
	p := &policy{kind: kind, exact: map[string]bool{}}
	for _, pattern := range allowlist {
		prefix, wildcard, err := readPattern(pattern)
		switch {
		case err != nil:
			return nil, err
		case wildcard:
			p.prefixes = append(p.prefixes, prefix)
		default:
			p.exact[pattern] = true
		}
	}
	return p, nil
}

// verifies reports whether credentials are needed for an image, by the container's name for it and whether the node pulled it. With an
// unknown policy they are.
func (p *policy) verifies(image string, pulled bool) bool {
	switch p.kind {
	case configv1beta1.NeverVerify:
		return false
	case configv1beta1.NeverVerifyPreloadedImages:
		return pulled
	case configv1beta1.NeverVerifyAllowlistedImages:
		return !p.allows(image)
	}
	return true
}

func (p *policy) allows(image string) bool {
	if name, err := repository(image); err == nil {
		image = name
	}
	if p.exact[image] {
		return true
	}
	for _, prefix := range p.prefixes {
		if strings.HasPrefix(image, prefix) {
			return true
		}
	}
	return false
}

// ValidateAllowlist returns the first mistake in the patterns of preloadedImagesVerificationAllowlist.
func ValidateAllowlist(patterns []string) error {
	_, err := newPolicy("", patterns)
	return err
}

// readPattern parses a pattern: a repository, or a prefix that ends in "/*". The messages are upstream's.
func readPattern(pattern string) (prefix string, wildcard bool, err error) {
	if pattern != strings.TrimSpace(pattern) {
		return "", false, fmt.Errorf("leading/trailing spaces are not allowed: %s", pattern)
	}
	prefix = pattern
	if strings.HasSuffix(pattern, "/*") {
		prefix, wildcard = strings.TrimSuffix(pattern, "*"), true
	}
	switch {
	case prefix == "":
		return "", false, fmt.Errorf("the supplied pattern is too short: %s", pattern)
	case strings.Contains(prefix, "*"):
		return "", false, fmt.Errorf("not a valid wildcard pattern, only patterns ending with '/*' are allowed: %s", pattern)
	case wildcard && len(prefix) == 1:
		return "", false, fmt.Errorf("at least registry hostname is required")
	case wildcard:
		return prefix, true, nil
	}
	name, err := repository(prefix)
	if err != nil {
		return "", false, fmt.Errorf("failed to parse as an image name: %w", err) // upstream's words
	}
	if name != prefix {
		return "", false, fmt.Errorf("neither tag nor digest is accepted in an image reference: %s", pattern)
	}
	return prefix, false, nil
}

// repository returns an image's name as written, without tag and digest.
func repository(image string) (string, error) {
	parsed, err := reference.Parse(image)
	if err != nil {
		return "", err
	}
	named, ok := parsed.(reference.Named)
	if !ok {
		return "", fmt.Errorf("%q has no name", image)
	}
	return named.Name(), nil
}
