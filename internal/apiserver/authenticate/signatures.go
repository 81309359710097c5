// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticate

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"hash"
	"sync"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// maxKnown bounds the memory of verified signatures.
const maxKnown = 16384

// signatures caches the claims of tokens with valid signatures by a keyed hash. So it does not keep the tokens
// themselves, and clients cannot choose collisions. Two halves take turns: a token in use stays when the younger half
// is full. A new generation of keys clears the cache.
type signatures struct {
	hashes sync.Pool

	mu         sync.RWMutex
	generation uint64
	young, old map[[sha256.Size]byte]*known
}

// known is the result for one verified token.
type known struct {
	user.Info
	claims *claims
}

func (s *signatures) init() {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	s.hashes.New = func() any { return hmac.New(sha256.New, key) }
	s.young = map[[sha256.Size]byte]*known{}
}

func (s *signatures) key(token string) (sum [sha256.Size]byte) {
	h := s.hashes.Get().(hash.Hash)
	h.Reset()
	_, _ = h.Write([]byte(token)) // never fails
	h.Sum(sum[:0])
	s.hashes.Put(h)
	return sum
}

// get returns the cached claims of a token, or parses and caches them. parse returns nil for a token of another issuer.
func (s *signatures) get(token string, generation uint64, parse func() (*claims, error)) (*claims, *known, error) {
	key := s.key(token)
	s.mu.RLock()
	k, young := s.young[key]
	if !young {
		k = s.old[key]
	}
	if s.generation != generation {
		k = nil
	}
	s.mu.RUnlock()
	if k != nil && young {
		return k.claims, k, nil
	}
	if k == nil {
		c, err := parse()
		if c == nil || err != nil {
			return nil, nil, err
		}
		k = &known{claims: c, Info: withGroup(&authenticator.Response{User: who(c).UserInfo()}).User}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.generation > generation {
		return k.claims, k, nil // verified by keys that have changed since: not cached
	}
	if s.generation < generation {
		s.generation, s.young, s.old = generation, map[[sha256.Size]byte]*known{}, nil
	}
	if len(s.young) >= maxKnown/2 {
		s.young, s.old = map[[sha256.Size]byte]*known{}, s.young
	}
	s.young[key] = k
	return k.claims, k, nil
}
