// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package abac authorizes requests by policies from a file, one JSON object a line: the mode ABAC.
package abac

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
)

// Policy allows requests for resources or paths to a user or a group; if it names both, to a user in the group.
type Policy struct {
	User, Group                   string
	Readonly                      bool
	APIGroup, Resource, Namespace string
	NonResourcePath               string
}

// Decode decodes a line of a policy file; old reports that the line has neither apiVersion nor kind.
type Decode func(line []byte) (p Policy, old bool, err error)

// Policies are the policies of a file.
type Policies []Policy

// Read reads a policy file. It skips empty lines and lines that begin with #. An error names the line.
func Read(file string, decode Decode) (ps Policies, old int, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	ps = Policies{}
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		p, of, err := decode(lines.Bytes())
		if err != nil {
			return nil, 0, fmt.Errorf("error reading policy file %s, line %d: %s: %w", file, n, lines.Bytes(), err) // upstream's words
		}
		if of {
			old++
		}
		ps = append(ps, p)
	}
	if err := lines.Err(); err != nil {
		return nil, 0, fmt.Errorf("error reading policy file %s: %w", file, err) // upstream's words
	}
	return ps, old, nil
}

// Name is the type in an AuthorizationConfiguration.
func (Policies) Name() string { return "abac" }

// Authorize allows a request if a policy allows it. Otherwise it has no opinion.
func (ps Policies) Authorize(_ context.Context, a *authorize.Attributes) (authorize.Decision, string, error) {
	reads := a.Verb == "get" || a.Verb == "list" || a.Verb == "watch"
	for i := range ps {
		p := &ps[i]
		if p.is(a.User) && (reads || !p.Readonly) && (a.ResourceRequest && p.resource(a) || !a.ResourceRequest && p.path(a.Path)) {
			return authorize.Allow, "", nil
		}
	}
	return authorize.NoOpinion, "No policy matched.", nil // upstream's words
}

// is reports whether the policy applies to a user. A policy without a user or group applies to no user.
func (p *Policy) is(u user.Info) bool {
	if u == nil || p.User == "" && p.Group == "" {
		return false
	}
	if p.User != "" && p.User != "*" && p.User != u.GetName() {
		return false
	}
	return p.Group == "" || p.Group == "*" || slices.Contains(u.GetGroups(), p.Group)
}

func matches(pattern, s string) bool { return pattern == "*" || pattern == s }

func (p *Policy) resource(a *authorize.Attributes) bool {
	return matches(p.Namespace, a.Namespace) && matches(p.Resource, a.Resource) && matches(p.APIGroup, a.Group)
}

func (p *Policy) path(path string) bool {
	return matches(p.NonResourcePath, path) ||
		strings.HasSuffix(p.NonResourcePath, "*") && strings.HasPrefix(path, strings.TrimRight(p.NonResourcePath, "*"))
}

// Review lists what the policies allow a user in a namespace.
func (ps Policies) Review(_ context.Context, u user.Info, namespace string) (rs []authorizationv1.ResourceRule,
	paths []authorizationv1.NonResourceRule, incomplete bool, err error) {
	for i := range ps {
		p := &ps[i]
		if !p.is(u) || !matches(p.Namespace, namespace) {
			continue
		}
		verbs := []string{"*"}
		if p.Readonly {
			verbs = []string{"get", "list", "watch"}
		}
		if p.Resource != "" {
			rs = append(rs, authorizationv1.ResourceRule{Verbs: verbs, APIGroups: []string{p.APIGroup}, Resources: []string{p.Resource}})
		}
		if p.NonResourcePath != "" {
			paths = append(paths, authorizationv1.NonResourceRule{Verbs: verbs, NonResourceURLs: []string{p.NonResourcePath}})
		}
	}
	return rs, paths, false, nil
}
