// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodeaddress

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/mortise-dev/mortise/internal/agent/backoff"
)

// Events come in bursts: Run reads the addresses after a moment without events, or after a maximum delay. It holds a lost address long
// enough for another lease or the next router advertisement.
const (
	settled  = 500 * time.Millisecond
	atLast   = 3 * time.Second
	holding  = 30 * time.Second
	reopened = 10 * time.Second
)

// Run watches the machine's addresses until ctx is done.
func (a *Addresses) Run(ctx context.Context) error {
	if a.fixed {
		<-ctx.Done()
		return nil
	}
	var failures backoff.Failures
	for ctx.Err() == nil {
		err := a.follow(ctx)
		if ctx.Err() != nil {
			break
		}
		failures.Log(time.Now(), a.options.Logger.Error, "Could not watch the machine's addresses, retrying", "error", err, "again", reopened)
		wait := time.NewTimer(reopened)
		select {
		case <-ctx.Done():
		case <-wait.C:
		}
		wait.Stop()
	}
	return nil
}

// follow watches the addresses as long as the kernel sends events.
func (a *Addresses) follow(ctx context.Context) error {
	return a.machine.Listen(ctx, func(ctx context.Context, events <-chan struct{}) error {
		a.settle(ctx, events)
		return nil
	})
}

// settle reads the addresses, at once and after each burst of events.
func (a *Addresses) settle(ctx context.Context, events <-chan struct{}) {
	quiet, last, lost := stopped(), stopped(), stopped()
	defer quiet.Stop()
	defer last.Stop()
	defer lost.Stop()
	burst, holds := false, a.see(ctx, false)
	if holds {
		lost.Reset(holding)
	}
	for {
		over := false
		select {
		case <-ctx.Done():
			return
		case <-events:
			if quiet.Reset(settled); !burst {
				burst = true
				last.Reset(atLast)
			}
			continue
		case <-quiet.C:
		case <-last.C:
		case <-lost.C:
			over = true
		}
		burst = false
		quiet.Stop()
		last.Stop()
		switch held := a.see(ctx, over); {
		case held && (!holds || over):
			lost.Reset(holding)
			holds = true
		case !held:
			lost.Stop()
			holds = false
		}
	}
}

func stopped() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// see reads the machine's addresses and updates the node's. It holds lost addresses, or drops them after some time. It reports whether some
// are held, or whether it must read again for another reason.
func (a *Addresses) see(ctx context.Context, over bool) bool {
	v, err := a.machine.Look(ctx, a.options)
	if err != nil {
		if ctx.Err() == nil {
			a.failures.Log(time.Now(), a.options.Logger.Error, "Could not find the machine's addresses, retrying",
				"error", err, "again", holding)
		}
		return true
	}
	a.failures.Clear()
	a.mu.Lock()
	now := slices.Clone(a.now)
	a.mu.Unlock()
	next, held := Pick(now, v, a.options)
	if held && over {
		var anew []netip.Addr
		if anew, held = Pick(nil, v, a.options); len(anew) > 0 {
			next = anew
		}
	}
	if len(next) > 0 && !slices.Equal(now, next) {
		a.become(next)
	}
	return held
}
