// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"errors"
	"sync"
	"time"
)

// kubelet's times between attempts of an operation on a volume.
const (
	firstRetry = 500 * time.Millisecond // doubled after each failure
	lastRetry  = 2*time.Minute + 2*time.Second
)

// telling is a driver of which something is to be told.
type telling struct {
	driver string
	after  time.Duration // 0: the driver has registered, at once
}

// LookAgain has the functions of [Manager.OnRegister] called for a driver, in a moment: something of it is left to do.
func (m *Manager) LookAgain(ctx context.Context, driver string) {
	select {
	case m.drivers.told <- telling{driver, firstRetry}:
	case <-ctx.Done():
	}
}

// tellRegistered tells who wants to know of drivers, each in a goroutine of its own: a driver that hangs hinders no other.
func (m *Manager) tellRegistered(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	pokes := map[string]chan struct{}{} // by driver with a goroutine
	done := make(chan string)
	begin := func(t telling) {
		poke := make(chan struct{}, 1)
		pokes[t.driver] = poke
		running.Go(func() {
			m.tell(ctx, t, poke)
			select {
			case done <- t.driver:
			case <-ctx.Done():
			}
		})
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case t := <-m.drivers.told:
			if t.after == 0 {
				m.wakeWaiting(t.driver)
			}
			poke, busy := pokes[t.driver]
			if !busy {
				begin(t)
				continue
			}
			select {
			case poke <- struct{}{}:
			default: // it is poked already
			}
		case driver := <-done:
			poked := len(pokes[driver]) > 0
			if delete(pokes, driver); poked {
				begin(telling{driver, firstRetry})
			}
		}
	}
}

// tell calls the functions until none fails. A poke ends a wait.
func (m *Manager) tell(ctx context.Context, t telling, poke <-chan struct{}) {
	m.mu.Lock()
	all := m.registered
	m.mu.Unlock()
	for wait := t.after; ; wait = min(max(2*wait, firstRetry), lastRetry) {
		if wait > 0 && !m.pause(ctx, wait, poke) {
			return
		}
		var failed []error
		for _, f := range all {
			failed = append(failed, f(ctx, t.driver))
		}
		if errors.Join(failed...) == nil || ctx.Err() != nil {
			return
		}
	}
}

// pause waits, and reports whether ctx goes on.
func (m *Manager) pause(ctx context.Context, wait time.Duration, poke <-chan struct{}) bool {
	timer := m.Clock.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-poke:
	case <-timer.C():
	}
	return true
}
