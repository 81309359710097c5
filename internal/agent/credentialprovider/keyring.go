// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package credentialprovider finds the credentials for an image, by kubelet's rules: in a pod's image pull secrets, and in the answers of
// image credential providers.
//
// Either contains a docker configuration: a table whose keys name a registry or repositories of one, such as
// "registry.example.com", "registry.example.com:5000/team" or "*.example.com". A key matches an image if
//
//   - its host has as many labels as the image's registry, and each label matches as a pattern (* and ? stay within a label);
//   - its port equals the image's, where no port matches only no port;
//   - its path is a prefix of the image's repository.
//
// [Keyring.Lookup] returns the credentials of every matching key, the most specific key first; the caller tries them in
// order. If no key matches an image of Docker Hub, it gets those of the key index.docker.io.
//
// Add fills a Keyring; afterwards it is only read, and safe for concurrent use.
package credentialprovider

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// dockerHub is the key of credentials for Docker Hub.
const dockerHub = "index.docker.io"

// Login is a user's name and password.
type Login struct {
	Username, Password string
}

// Credential is a login and where it comes from, in the form of kubelet's records of pulled images: at most one of Secret and Account is
// set. If neither is, all pods of the node may use what is pulled with the login.
type Credential struct {
	Login
	Secret  *configv1beta1.ImagePullSecret         // the secret that contains the login, with the login's hash
	Account *configv1beta1.ImagePullServiceAccount // the service account whose token a provider turned into the login
}

// Keyring has the credentials of one pod.
type Keyring struct {
	credentials map[string][]Credential
}

// Add adds the credentials of a secret. It skips secrets of other types, and returns an error for an invalid docker configuration.
func (k *Keyring) Add(secret *corev1.Secret) error {
	entries, err := read(secret)
	if err != nil {
		return err
	}
	for _, written := range slices.Sorted(maps.Keys(entries)) {
		e := entries[written]
		k.add(written, Credential{Login: Login{e.Username, e.Password}, Secret: &configv1beta1.ImagePullSecret{
			UID: string(secret.UID), Namespace: secret.Namespace, Name: secret.Name, CredentialHash: e.hash(),
		}})
	}
	return nil
}

// AddLogins adds the logins that a provider returned, by their keys. The account is the one whose token the provider was given; nil: none.
func (k *Keyring) AddLogins(logins map[string]Login, account *configv1beta1.ImagePullServiceAccount) {
	for _, written := range slices.Sorted(maps.Keys(logins)) {
		k.add(written, Credential{Login: logins[written], Account: account})
	}
}

// add passes over a key that is not a URL.
func (k *Keyring) add(written string, c Credential) {
	key, ok := keyOf(written)
	if !ok {
		return
	}
	if k.credentials == nil {
		k.credentials = map[string][]Credential{}
	}
	k.credentials[key] = append(k.credentials[key], c)
}

// Repository returns an image's name with registry, without tag and digest: what keys match, and what providers are asked for.
func Repository(image string) (string, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return "", fmt.Errorf("couldn't parse image name %q: %w", image, err) // upstream's words
	}
	return named.Name(), nil
}

// Lookup returns the credentials for the image, the most specific first. The image is the container's.
func (k *Keyring) Lookup(image string) ([]Credential, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return nil, fmt.Errorf("couldn't parse image name %q: %w", image, err) // upstream's words
	}
	var out []Credential
	// In descending order, a longer path comes before its prefix.
	for _, key := range slices.Backward(slices.Sorted(maps.Keys(k.credentials))) {
		if Matches(key, named.Name()) {
			out = append(out, k.credentials[key]...)
		}
	}
	// The name is normalized: kubelet treats hosts without dot or port as Docker Hub, which includes localhost.
	if len(out) == 0 && reference.Domain(named) == "docker.io" {
		out = k.credentials[dockerHub]
	}
	return out, nil
}

// keyOf returns a key without its scheme and without the version of the registry's API.
func keyOf(written string) (string, bool) {
	if !strings.HasPrefix(written, "https://") && !strings.HasPrefix(written, "http://") {
		written = "https://" + written
	}
	parsed, err := url.Parse(written)
	if err != nil {
		return "", false
	}
	path := parsed.Path
	if strings.HasPrefix(path, "/v2/") || strings.HasPrefix(path, "/v1/") {
		path = path[len("/v2"):]
	}
	if path == "/" {
		path = ""
	}
	return parsed.Host + path, true
}

// Matches reports whether a key matches a repository, both without scheme.
func Matches(key, repository string) bool {
	k, err := url.Parse("https://" + key)
	if err != nil {
		return false
	}
	r, err := url.Parse("https://" + repository)
	if err != nil || !strings.HasPrefix(r.Path, k.Path) {
		return false
	}
	patterns, port := split(k.Host)
	parts, at := split(r.Host)
	if port != at || len(patterns) != len(parts) {
		return false
	}
	for i, pattern := range patterns {
		if ok, err := filepath.Match(pattern, parts[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

// split splits a host and a port.
func split(address string) (parts []string, port string) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		host, port = address, ""
	}
	return strings.Split(host, "."), port
}

// hash returns kubelet's hash of a login, so that kubelet's records stay valid.
func (e entry) hash() string {
	// Upstream's AuthConfig, in its order.
	text, err := json.Marshal(struct {
		Username string `json:"username,omitempty"`
		Password string `json:"password,omitempty"`
		Email    string `json:"email,omitempty"`
	}{e.Username, e.Password, e.Email})
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
