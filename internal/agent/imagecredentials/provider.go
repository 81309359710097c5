// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package imagecredentials

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kubelet/config/v1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	protocol "k8s.io/kubelet/pkg/apis/credentialprovider"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/credentialprovider"
)

// globalKey is the key of logins for all images. No image has such a name.
const globalKey = "<global>"

// provider is one configured provider.
type provider struct {
	Options
	config configv1.CredentialProvider
	ref    extension.Ref
	caller *caller
	tokens *tokens
	cache  *cache
	flight singleflight.Group
}

// identity is the service account that a provider is called for.
type identity struct {
	account     *configv1beta1.ImagePullServiceAccount // nil: none
	token       string
	annotations map[string]string
	key         string // of the cache; empty: the logins do not depend on the account
}

// lookup returns the provider's logins for a repository, from its cache or from its program, and the account whose token it was given.
// Nothing, and no error, if the provider is not for this image or this pod.
func (p *provider) lookup(
	ctx context.Context, pod *corev1.Pod, repository string,
) (map[string]credentialprovider.Login, *configv1beta1.ImagePullServiceAccount, error) {
	if !slices.ContainsFunc(p.config.MatchImages, func(m string) bool { return credentialprovider.Matches(m, repository) }) {
		return nil, nil, nil
	}
	id, err := p.identify(ctx, pod)
	if err != nil || id == nil {
		return nil, nil, err
	}
	registry, _, _ := strings.Cut(repository, "/")
	for _, key := range []string{repository, registry, globalKey} {
		if logins, ok := p.cache.get(keyOf(key, id.key), p.Clock.Now()); ok {
			return logins, id.account, nil
		}
	}
	response, err := p.ask(ctx, request{repository, id.token, id.annotations})
	if err != nil {
		return nil, nil, err
	}
	logins, err := p.accept(response, id, repository, registry)
	return logins, id.account, err
}

// accept checks an answer, and keeps it for as long as the provider wants.
func (p *provider) accept(
	response *protocol.CredentialProviderResponse, id *identity, repository, registry string,
) (map[string]credentialprovider.Login, error) {
	logins := make(map[string]credentialprovider.Login, len(response.Auth))
	for key, a := range response.Auth {
		if id.token != "" && a.Password == id.token && p.config.TokenAttributes.CacheType != configv1.TokenServiceAccountTokenCacheType {
			return nil, errors.New("credential provider plugin returned the service account token as the password which is not allowed when " +
				"service account cache type is not set to 'Token'") // upstream's words
		}
		logins[key] = credentialprovider.Login{Username: a.Username, Password: a.Password}
	}
	var key string
	switch response.CacheKeyType {
	case protocol.ImagePluginCacheKeyType:
		key = repository
	case protocol.RegistryPluginCacheKeyType:
		key = registry
	case protocol.GlobalPluginCacheKeyType:
		key = globalKey
	default:
		// upstream's words
		return nil, fmt.Errorf("credential provider plugin did not return a valid cacheKeyType: %.100s", response.CacheKeyType)
	}
	keep := p.config.DefaultCacheDuration.Duration
	if response.CacheDuration != nil {
		keep = response.CacheDuration.Duration
	}
	if keep != 0 {
		now := p.Clock.Now()
		p.cache.put(keyOf(key, id.key), logins, now, now.Add(keep))
	}
	return logins, nil
}

// identify returns the pod's service account as the provider wants it; nil: the provider is not to be called for this pod.
func (p *provider) identify(ctx context.Context, pod *corev1.Pod) (*identity, error) {
	t := p.config.TokenAttributes
	if t == nil {
		return &identity{}, nil
	}
	name := pod.Spec.ServiceAccountName
	if name == "" {
		if *t.RequireServiceAccount {
			return nil, nil
		}
		return &identity{}, nil
	}
	account, err := p.Accounts.ServiceAccount(ctx, pod.Namespace, name)
	if err != nil {
		return nil, fmt.Errorf("failed to get service account: %w", err) // upstream's words
	}
	id := &identity{annotations: map[string]string{}, account: &configv1beta1.ImagePullServiceAccount{
		UID: string(account.UID), Namespace: pod.Namespace, Name: name,
	}}
	for _, key := range t.RequiredServiceAccountAnnotationKeys {
		value, ok := account.Annotations[key]
		if !ok {
			return nil, nil // the workload has not opted in
		}
		id.annotations[key] = value
	}
	for _, key := range t.OptionalServiceAccountAnnotationKeys {
		if value, ok := account.Annotations[key]; ok {
			id.annotations[key] = value
		}
	}
	if id.token, err = p.tokens.get(ctx, account, pod, t.ServiceAccountTokenAudience); err != nil {
		return nil, fmt.Errorf("failed to get service account token: %w", err) // upstream's words
	}
	parts := []any{pod.Namespace, name, account.UID, id.annotations}
	if t.CacheType == configv1.TokenServiceAccountTokenCacheType {
		parts = append(parts, sha256.Sum256([]byte(id.token)))
	}
	id.key = keyOf(parts...)
	return id, nil
}

// keyOf returns a key that differs if any of the parts does.
func keyOf(parts ...any) string {
	text, err := json.Marshal(parts) // maps are sorted
	if err != nil {
		panic("keys are of texts, maps of texts and numbers: " + err.Error())
	}
	return string(text)
}

// ask calls the program, once for all that ask the same at the same time.
func (p *provider) ask(ctx context.Context, r request) (*protocol.CredentialProviderResponse, error) {
	key := keyOf(r.image, sha256.Sum256([]byte(r.token)), r.annotations)
	for {
		answer, err, shared := p.flight.Do(key, func() (any, error) {
			var out *protocol.CredentialProviderResponse
			start := p.Clock.Now()
			err := p.Ledger.Call(ctx, p.ref, extension.Policy{}, func(ctx context.Context) (err error) {
				out, err = p.caller.call(ctx, r)
				return err
			})
			p.Metrics.called(p.config.Name, p.Clock.Since(start), err)
			return out, err
		})
		if err != nil && shared && ctx.Err() == nil && errors.Is(err, context.Canceled) {
			continue // the one that asked for all has left
		}
		if err != nil {
			return nil, err
		}
		return answer.(*protocol.CredentialProviderResponse), nil
	}
}
