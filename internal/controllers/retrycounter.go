// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllers

import "sync"

// A RetryCounter counts the keys of all controllers that failed and come back within their first second. The nil value counts nothing. It
// is safe for concurrent use.
type RetryCounter struct {
	mu   sync.Mutex
	keys int
	none chan struct{} // closed while there are none; nil: there never were any
}

// closed is the channel of no keys.
var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// None returns a channel that is closed once there are no such keys.
func (r *RetryCounter) None() <-chan struct{} {
	if r == nil {
		return closed
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keys == 0 {
		return closed
	}
	return r.none
}

// add counts n more keys, or fewer.
func (r *RetryCounter) add(n int) {
	if r == nil || n == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keys == 0 {
		r.none = make(chan struct{})
	}
	if r.keys += n; r.keys == 0 {
		close(r.none)
	}
}

// retrying is the keys of one queue that come back soon.
type retrying struct {
	all *RetryCounter

	mu   sync.Mutex
	keys map[any]bool // nil: the queue has ended
}

func newRetrying(all *RetryCounter) *retrying {
	return &retrying{all: all, keys: map[any]bool{}}
}

// soon records that a key comes back soon.
func (r *retrying) soon(key any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keys != nil && !r.keys[key] {
		r.keys[key] = true
		r.all.add(1)
	}
}

// back records that a key has come back.
func (r *retrying) back(key any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keys[key] {
		delete(r.keys, key)
		r.all.add(-1)
	}
}

// end forgets all keys.
func (r *retrying) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all.add(-len(r.keys))
	r.keys = nil
}
