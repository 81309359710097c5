// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"sync"
	"time"
)

// Bounds of one-time codes.
const (
	codeLife  = 5 * time.Minute
	codeBytes = 16 // of randomness
	mostCodes = 64 // that wait to be used
)

// codes are the one-time codes that wait to be used, in memory alone. Its methods may be called by any goroutine.
type codes struct {
	now func() time.Time

	mu      sync.Mutex
	waiting map[[sha256.Size]byte]waitingCode // by the hash of the code: the time of a search tells nothing about codes
}

type waitingCode struct {
	session *session
	until   time.Time
}

// make returns a new code for a session; false: too many wait already.
func (c *codes) make(s *session) (code string, until time.Time, ok bool) {
	var random [codeBytes]byte
	_, _ = rand.Read(random[:]) // never fails
	code = base64.RawURLEncoding.EncodeToString(random[:])
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	maps.DeleteFunc(c.waiting, func(_ [sha256.Size]byte, w waitingCode) bool { return !now.Before(w.until) })
	if len(c.waiting) >= mostCodes {
		return "", until, false
	}
	if c.waiting == nil {
		c.waiting = map[[sha256.Size]byte]waitingCode{}
	}
	until = now.Add(codeLife)
	c.waiting[sha256.Sum256([]byte(code))] = waitingCode{s, until}
	return code, until, true
}

// take returns the session of a code, once.
func (c *codes) take(code string) (*session, bool) {
	hash := sha256.Sum256([]byte(code))
	c.mu.Lock()
	defer c.mu.Unlock()
	w, ok := c.waiting[hash]
	delete(c.waiting, hash)
	if !ok || !c.now().Before(w.until) {
		return nil, false
	}
	return w.session, true
}
