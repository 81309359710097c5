// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeaddress finds the addresses at which other hosts reach this machine, and watches their changes: a machine's address may be
// leased, and its network may get another IP family while the node runs.
//
//	pick.go   [Pick]: selects the node's addresses from the machine's; pure
//	look.go   [Network]: reads links, addresses and routes on any operating system, and sees no changes
//	watch.go  [Addresses.Run]: watches the machine's events and updates the node's addresses
//
// Package nodeaddress/kernel reads them from Linux, with what passes and with events. [Find] reads them once. The [Addresses] that it
// returns are safe for concurrent use, and change while Run runs; after each change Run calls the functions that [Addresses.Tell]
// registered. [Fixed] addresses are configured and never change.
//
// Lost addresses stay for a while. If a link flaps, or a lease is renewed late, the node keeps its addresses until others replace them;
// of two IP families, it drops a lost address some time after the loss. A node always has an address.
package nodeaddress

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/mortise-dev/mortise/internal/agent/backoff"
)

// Options select the addresses. The zero value selects the source address of the default route.
type Options struct {
	// Server is the host:port that the node must reach: its address is the source address of these connections. Empty: the default route.
	Server string
	// Both adds the address of the other IP family on the same link.
	Both bool
	// Pods and Services are the cluster's ranges, which have no nodes' addresses.
	Pods, Services []netip.Prefix
	Logger         *slog.Logger // nil discards logs
}

// Machine is where the addresses come from.
type Machine interface {
	// Look reads the links, addresses and routes.
	Look(ctx context.Context, o Options) (View, error)
	// Listen calls run with a channel that receives a value after each change of them. It returns when run returns, or when there are
	// no more events.
	Listen(ctx context.Context, run func(ctx context.Context, events <-chan struct{}) error) error
}

// Addresses are a node's addresses: the primary one and, if there is one, that of the other IP family.
type Addresses struct {
	options Options
	fixed   bool
	machine Machine

	mu   sync.Mutex
	now  []netip.Addr
	told []func()

	failures backoff.Failures // to read the machine's addresses
}

// Find finds the machine's addresses. The address of a machine without any is 127.0.0.1.
func Find(ctx context.Context, m Machine, o Options) (*Addresses, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	v, err := m.Look(ctx, o)
	if err != nil {
		return nil, err
	}
	a := &Addresses{options: o, machine: m}
	if a.now, _ = Pick(nil, v, o); len(a.now) == 0 {
		a.now = []netip.Addr{nowhere}
	}
	return a, nil
}

// nowhere is the address of a machine without any.
var nowhere = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// Fixed returns configured addresses. It leaves out invalid ones.
func Fixed(texts ...string) *Addresses {
	a := &Addresses{fixed: true}
	for _, text := range texts {
		if ip, err := netip.ParseAddr(text); err == nil {
			a.now = append(a.now, ip.Unmap())
		}
	}
	return a
}

// Fixed reports whether the addresses never change.
func (a *Addresses) Fixed() bool { return a.fixed }

// Texts returns the current addresses as texts. The caller owns them.
func (a *Addresses) Texts() (out []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, ip := range a.now {
		out = append(out, ip.String())
	}
	return out
}

// Tell registers f to be called after each change, in the order of registration. Run calls it.
func (a *Addresses) Tell(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.told = append(a.told, f)
}

// become sets the addresses, and calls the registered functions.
func (a *Addresses) become(next []netip.Addr) {
	a.mu.Lock()
	before, told := a.now, slices.Clone(a.told)
	a.now = next
	a.mu.Unlock()
	a.options.Logger.Info("Addresses of the node changed", "before", before, "now", next)
	for _, f := range told {
		f()
	}
}
