// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package imagecredentials

import (
	"context"
	"fmt"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/agent/credentialprovider"
)

// mostEntries is the maximum number of entries of a cache. A full cache drops those that end first.
const mostEntries = 4096

// purgePeriod is the period in which a cache drops what has ended; kubelet's.
const purgePeriod = 15 * time.Minute

// cache has a provider's logins, until they expire. It is safe for concurrent use.
type cache struct {
	mu      sync.Mutex
	entries map[string]cached
	purged  time.Time
}

type cached struct {
	logins map[string]credentialprovider.Login // not changed
	until  time.Time
}

func newCache() *cache { return &cache{entries: map[string]cached{}} }

func (c *cache) get(key string, now time.Time) (map[string]credentialprovider.Login, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[key]
	if ok && now.After(e.until) {
		delete(c.entries, key)
		ok = false
	}
	return e.logins, ok
}

func (c *cache) put(key string, logins map[string]credentialprovider.Login, now, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if full := len(c.entries) >= mostEntries; full || now.Sub(c.purged) > purgePeriod {
		c.purged = now
		first, at := "", time.Time{}
		for k, e := range c.entries {
			if now.After(e.until) {
				delete(c.entries, k)
			} else if first == "" || e.until.Before(at) {
				first, at = k, e.until
			}
		}
		if len(c.entries) >= mostEntries {
			delete(c.entries, first)
		}
	}
	c.entries[key] = cached{logins, until}
}

// The age at which a token is renewed, as kubelet renews them: a day, or this part of its life.
const (
	oldestToken  = 24 * time.Hour
	renewalShare = 0.8
)

// tokens are the service account tokens that providers are given, each bound to a pod. A token is used again until it is to be renewed, so
// that logins that are kept for a token are found again.
type tokens struct {
	accounts Accounts
	now      func() time.Time

	mu   sync.Mutex
	have map[string]token
}

type token struct {
	text         string
	renew, until time.Time
}

func newTokens(accounts Accounts, now func() time.Time) *tokens {
	return &tokens{accounts: accounts, now: now, have: map[string]token{}}
}

// get returns a token of the account for the audience, bound to the pod. If it cannot renew one, it returns the old one while that is
// valid.
func (t *tokens) get(ctx context.Context, account *corev1.ServiceAccount, pod *corev1.Pod, audience string) (string, error) {
	key := keyOf(account.Namespace, account.Name, account.UID, pod.Name, pod.UID, audience)
	now := t.now()
	t.mu.Lock()
	had, ok := t.have[key]
	t.mu.Unlock()
	if ok && now.Before(had.renew) {
		return had.text, nil
	}
	answer, err := t.accounts.Token(ctx, account.Namespace, account.Name, &authenticationv1.TokenRequest{
		ObjectMeta: metav1.ObjectMeta{UID: account.UID},
		Spec: authenticationv1.TokenRequestSpec{
			Audiences:      []string{audience},
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
		},
	})
	if err != nil && ok && now.Before(had.until) {
		return had.text, nil
	}
	if err != nil {
		return "", fmt.Errorf("failed to fetch token: %w", err) // upstream's words
	}
	made := token{text: answer.Status.Token, until: answer.Status.ExpirationTimestamp.Time}
	made.renew = now.Add(min(time.Duration(renewalShare*float64(made.until.Sub(now))), oldestToken))
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, old := range t.have {
		if now.After(old.until) {
			delete(t.have, k)
		}
	}
	t.have[key] = made
	return made.text, nil
}
