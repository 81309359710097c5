// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package uplink finds the addresses by which others reach this machine, and follows them: a machine's address may be leased, and its
// network may get another IP family while the node runs.
//
//	pick.go    [Pick]: which of a machine's addresses are the node's; pure
//	look.go    what the kernel says of links, addresses and the ways that it would send
//	follow.go  [Addresses.Run]: the kernel's events, settled, and what becomes of the node's addresses
//
// [Find] looks once. The [Addresses] that it returns are safe for concurrent use, and change while Run runs; who depends on them is told
// (Tell) after they have. [Fixed] are those that somebody has given: they never change.
//
// Addresses that are lost are not forgotten at once. A link that flaps, or a lease that is late, leaves the node its addresses as long as
// nothing else has taken their place; the address of one IP family goes a while after it was lost. A node is never without any.
package uplink

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
)

// Options say which addresses are wanted. The zero value: the one by which the machine sends to the world.
type Options struct {
	// Server is host:port of whom the node must reach: its address is the one from which it does. Empty: the world.
	Server string
	// Both adds the address of the other IP family that is on the same link.
	Both bool
	// Pods and Services are the cluster's ranges: no node is reached there.
	Pods, Services []netip.Prefix
	Logger         *slog.Logger // nil: nothing is logged
}

// Addresses are a node's: the one by which others reach it, and then, maybe, that of the other IP family.
type Addresses struct {
	options Options
	fixed   bool
	look    func(context.Context, Options) (View, error)

	mu   sync.Mutex
	now  []netip.Addr
	told []func()
}

// Find looks for the machine's addresses. One that has none is reached at 127.0.0.1, by itself.
func Find(ctx context.Context, o Options) (*Addresses, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	v, err := look(ctx, o)
	if err != nil {
		return nil, err
	}
	a := &Addresses{options: o, look: look}
	if a.now, _ = Pick(nil, v, o); len(a.now) == 0 {
		a.now = []netip.Addr{nowhere}
	}
	return a, nil
}

// nowhere is the address of a machine that has none.
var nowhere = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// Fixed are addresses that were given. What is no address is left out.
func Fixed(texts ...string) *Addresses {
	a := &Addresses{fixed: true}
	for _, text := range texts {
		if ip, err := netip.ParseAddr(text); err == nil {
			a.now = append(a.now, ip.Unmap())
		}
	}
	return a
}

// Fixed says whether they never change.
func (a *Addresses) Fixed() bool { return a.fixed }

// Texts are the addresses of now, as texts; they are the caller's.
func (a *Addresses) Texts() (out []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, ip := range a.now {
		out = append(out, ip.String())
	}
	return out
}

// Tell has f called after each change, after those that were to be told before. It is called by Run.
func (a *Addresses) Tell(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.told = append(a.told, f)
}

// become makes them these, and tells.
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
