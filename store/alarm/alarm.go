// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package alarm calls a function at the soonest of several times. Engines use one alarm for keys that expire and one for bookmarks: a
// single timer each, armed only when there is something to wait for, and no polling.
//
// Time is injected as a [Clock]; [System] is the real one.
//
// # Stability
//
// Other programs may use this package. A committed list of what it exports is compared in a test, so that nothing changes by accident. A
// release may change it, and its notes announce the change.
package alarm

import (
	"sync"
	"time"
)

// Clock is an engine's clock.
type Clock interface {
	Now() time.Time
	// AfterFunc calls f in its own goroutine after d.
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is the result of [Clock.AfterFunc].
type Timer interface {
	// Stop prevents the call if it has not begun, and reports whether it did.
	Stop() bool
}

// System is the system clock.
type System struct{}

// Now returns the current time.
func (System) Now() time.Time { return time.Now() }

// AfterFunc is [time.AfterFunc].
func (System) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }

// Alarm calls ring once at or after the earliest time that it was set to since its last call. It is safe for concurrent
// use; ring runs in a goroutine of its own, one call at a time.
type Alarm struct {
	clock Clock
	ring  func()

	mu      sync.Mutex
	timer   Timer
	at      time.Time // zero: not set
	set     int       // counts timers, so that a replaced one knows
	stopped bool
	ringing sync.Mutex
}

// New returns an alarm that is not set.
func New(clock Clock, ring func()) *Alarm { return &Alarm{clock: clock, ring: ring} }

// Set makes the alarm ring at the given time, unless it will ring sooner. The zero time does nothing.
func (a *Alarm) Set(at time.Time) {
	if at.IsZero() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped || !a.at.IsZero() && !at.Before(a.at) {
		return
	}
	if a.timer != nil {
		a.timer.Stop()
	}
	a.at = at
	a.set++
	set := a.set
	a.timer = a.clock.AfterFunc(max(at.Sub(a.clock.Now()), 0), func() { a.fire(set) })
}

func (a *Alarm) fire(set int) {
	a.ringing.Lock()
	defer a.ringing.Unlock()
	a.mu.Lock()
	if a.stopped || set != a.set {
		a.mu.Unlock()
		return
	}
	a.at, a.timer = time.Time{}, nil
	a.mu.Unlock()
	a.ring()
}

// Stop ends the alarm: after it returns, ring is not running and will not run. ring must not call Stop.
func (a *Alarm) Stop() {
	a.mu.Lock()
	a.stopped = true
	if a.timer != nil {
		a.timer.Stop()
	}
	a.mu.Unlock()
	a.ringing.Lock()
	defer a.ringing.Unlock()
}
