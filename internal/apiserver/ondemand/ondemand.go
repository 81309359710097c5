// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package ondemand caches values that can be computed again, within a bound of memory.
//
// A [Value] is computed when it is first requested. A [Pool] bounds the memory of its values. When a new one does not
// fit, it drops those that were not requested since its last pass, by the clock algorithm. Callers may go on using the
// result of a dropped value; the next request computes it again.
//
// Worked example: the pool has room for three values and contains a, b and c, which were all requested recently.
// Computing d makes the clock hand go round once, which clears their marks, and drops a. A request for b sets its mark
// again, so e drops c.
//
// # Concurrency
//
// Values and pools are safe for concurrent use. Reading a cached value takes no lock and writes no shared memory again.
// Concurrent requests for the same missing value wait for one computation; computations of different values do not wait for
// each other.
package ondemand

import (
	"sync"
	"sync/atomic"
	"weak"
)

// Pool bounds the total memory of its values.
type Pool struct {
	max int64

	mu    sync.Mutex
	total int64
	ring  []entry
	hand  int
}

// entry is a computed value. The pool does not keep the value alive: a value that is no longer used is freed before its
// entry.
type entry struct {
	slot weak.Pointer[slot]
	cost int64
}

// slot is the part of a value that the pool needs.
type slot struct {
	made atomic.Pointer[any]
	used atomic.Bool
}

// NewPool limits its values to about max bytes.
func NewPool(max int64) *Pool { return &Pool{max: max} }

// Used returns the approximate memory of the values, some of which are no longer used.
func (p *Pool) Used() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total
}

func (p *Pool) add(s *slot, cost int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Each entry is visited at most twice: once to clear its mark, once to drop it.
	for tries := 2 * len(p.ring); p.total+cost > p.max && tries > 0 && len(p.ring) > 0; tries-- {
		if p.hand >= len(p.ring) {
			p.hand = 0
		}
		e := p.ring[p.hand]
		old := e.slot.Value()
		if old != nil && old.used.Swap(false) {
			p.hand++
			continue
		}
		if old != nil {
			old.made.Store(nil)
		}
		p.total -= e.cost
		last := len(p.ring) - 1
		p.ring[p.hand] = p.ring[last]
		p.ring[last] = entry{}
		p.ring = p.ring[:last]
	}
	p.ring = append(p.ring, entry{weak.Make(s), cost})
	p.total += cost
}

// Value is a value that is computed on demand.
type Value[T any] struct {
	pool *Pool
	cost int64
	make func() (T, error)

	mu   sync.Mutex // held during the computation
	slot *slot
}

// New returns a value that takes about cost bytes once it is computed. With a nil pool it is never dropped.
func New[T any](p *Pool, cost int64, make func() (T, error)) *Value[T] {
	return &Value[T]{pool: p, cost: cost, make: make, slot: &slot{}}
}

// Get returns the value. It does not cache an error: the next call computes the value again.
func (v *Value[T]) Get() (T, error) {
	if p := v.slot.made.Load(); p != nil {
		if !v.slot.used.Load() {
			v.slot.used.Store(true)
		}
		return (*p).(T), nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if p := v.slot.made.Load(); p != nil {
		v.slot.used.Store(true)
		return (*p).(T), nil
	}
	t, err := v.make()
	if err != nil {
		return t, err
	}
	made := any(t)
	v.slot.used.Store(true)
	v.slot.made.Store(&made)
	if v.pool != nil {
		v.pool.add(v.slot, v.cost)
	}
	return t, nil
}
