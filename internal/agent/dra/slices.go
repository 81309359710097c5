// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// wipingDelay is how long a driver may be gone before its ResourceSlices are removed, as with kubelet: a container restarts in less.
	wipingDelay = 30 * time.Second

	wipingTimeout    = 30 * time.Second // of one request
	firstWipingRetry = time.Second
	lastWipingRetry  = 5 * time.Minute
)

// everyDriver stands for the slices of all drivers.
const everyDriver = ""

// wiper removes the ResourceSlices of drivers that are not there: all when the node starts, because none has registered yet, and those of a
// driver that is not connected for 30 seconds. Drivers that are there publish theirs anew.
type wiper struct {
	api    API
	clock  clock.Clock
	logger *slog.Logger
	usable func(driver string) bool
	wake   chan struct{}

	mu    sync.Mutex
	names map[string]bool // drivers whose state has changed
}

// wiping is a removal that is due.
type wiping struct {
	at    time.Time
	retry time.Duration
}

func newWiper(api API, c clock.Clock, logger *slog.Logger) *wiper {
	return &wiper{api: api, clock: c, logger: logger, wake: make(chan struct{}, 1), names: map[string]bool{}}
}

// changed tells that a driver has registered, connected, disconnected or gone.
func (w *wiper) changed(driver string) {
	w.mu.Lock()
	w.names[driver] = true
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run removes slices until ctx is done.
func (w *wiper) run(ctx context.Context) error {
	due := map[string]wiping{everyDriver: {w.clock.Now(), firstWipingRetry}}
	for ctx.Err() == nil {
		w.plan(due)
		now := w.clock.Now()
		next := time.Time{}
		for _, driver := range slices.Sorted(maps.Keys(due)) {
			if d := due[driver]; !d.at.After(now) {
				w.wipe(ctx, driver, due)
			}
			if d, ok := due[driver]; ok && (next.IsZero() || d.at.Before(next)) {
				next = d.at
			}
		}
		var timer clock.Timer
		var fire <-chan time.Time
		if !next.IsZero() {
			timer = w.clock.NewTimer(next.Sub(w.clock.Now()))
			fire = timer.C()
		}
		select {
		case <-ctx.Done():
		case <-w.wake:
		case <-fire:
		}
		if timer != nil {
			timer.Stop()
		}
	}
	return nil
}

// plan notes the drivers that are gone, and drops those that are back.
func (w *wiper) plan(due map[string]wiping) {
	w.mu.Lock()
	names := w.names
	w.names = map[string]bool{}
	w.mu.Unlock()
	for driver := range names {
		if w.usable(driver) {
			delete(due, driver)
		} else if _, ok := due[driver]; !ok {
			due[driver] = wiping{w.clock.Now().Add(wipingDelay), firstWipingRetry}
		}
	}
}

// wipe makes one attempt.
func (w *wiper) wipe(ctx context.Context, driver string, due map[string]wiping) {
	bounded, cancel := context.WithTimeout(ctx, wipingTimeout)
	defer cancel()
	err := w.api.DeleteSlices(bounded, driver)
	if err == nil {
		delete(due, driver)
		return
	}
	d := due[driver]
	if ctx.Err() == nil && d.retry == firstWipingRetry<<3 { // a node that has not registered yet is not worth a line
		w.logger.Warn("Could not delete ResourceSlices of a DRA driver that is not there, retrying", "driver", driver, "err", err)
	}
	due[driver] = wiping{w.clock.Now().Add(d.retry), min(2*d.retry, lastWipingRetry)}
}
