// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package servicelb

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// port is a port of a Service.
type port struct {
	protocol corev1.Protocol
	number   int32
}

// slot is a port of an address: what at most one Service has.
type slot struct {
	address netip.Addr
	port
}

// String returns the slot as events show it: "port 80/TCP of 192.0.2.1".
func (s slot) String() string {
	return fmt.Sprintf("port %d/%s of %s", s.number, s.protocol, s.address)
}

// claim is what a Service asks for.
type claim struct {
	service types.NamespacedName
	ports   []port
	// families are the Service's, the preferred first.
	families []corev1.IPFamily
	// address is the only address that will do; invalid: any.
	address netip.Addr
	// alone claims share no address of a pool with other Services: the node that announces it must have endpoints of each.
	alone bool
}

// offer is what there is to give.
type offer struct {
	// each are addresses of which a claim gets all: those of nodes.
	each []netip.Addr
	// pool are the ranges of which a claim gets one address of each family.
	pool pool
	// reserved are the slots that no Service gets, with the names of their owners.
	reserved map[slot]string
}

// granted is what a claim gets.
type granted struct {
	addresses []netip.Addr
	// taken is why there are not more: a slot and its owner. Empty: the claim gets all that it asks for.
	taken string
	// wake are the Services that may now get what they wait for, those that have waited longest first.
	wake []types.NamespacedName
}

// book has the owner of each port of each address. It is pure, and not safe for concurrent use.
type book struct {
	owners  map[slot]types.NamespacedName
	held    map[types.NamespacedName][]slot
	users   map[netip.Addr]int // Services with a slot of the address
	alone   map[netip.Addr]bool
	waiting []types.NamespacedName
}

func newBook() *book {
	return &book{
		owners: map[slot]types.NamespacedName{}, held: map[types.NamespacedName][]slot{}, users: map[netip.Addr]int{},
		alone: map[netip.Addr]bool{},
	}
}

// settle replaces what the claim's Service has by what it gets of the offer. It keeps addresses that the Service has.
func (b *book) settle(c claim, o offer) (g granted) {
	before := b.held[c.service]
	has := addressesOf(before)
	alone := slices.DeleteFunc(slices.Clone(has), func(a netip.Addr) bool { return !b.alone[a] })
	b.drop(c.service)
	waits := false
	if !o.pool.empty() {
		for _, f := range c.families {
			a, taken := b.choose(c, o, f, has)
			if a.IsValid() {
				g.addresses = append(g.addresses, a)
				continue
			}
			if waits = true; g.taken == "" {
				g.taken = taken
			}
		}
	} else {
		for _, a := range o.each {
			if !slices.Contains(c.families, familyOf(a)) || c.address.IsValid() && a != c.address {
				continue
			}
			if taken := b.conflict(c, o, a); taken == "" {
				g.addresses = append(g.addresses, a)
			} else if waits = true; g.taken == "" {
				g.taken = taken
			}
		}
		slices.SortStableFunc(g.addresses, func(x, y netip.Addr) int {
			return slices.Index(c.families, familyOf(x)) - slices.Index(c.families, familyOf(y))
		})
	}
	b.occupy(c, g.addresses)
	if len(g.addresses) > 0 && o.pool.empty() {
		g.taken = "" // the others are other nodes' addresses
	}
	b.wait(c.service, waits)
	if slices.ContainsFunc(before, func(s slot) bool { return b.owners[s] != c.service }) ||
		slices.ContainsFunc(alone, func(a netip.Addr) bool { return !b.alone[a] }) {
		g.wake = b.others(c.service)
	}
	return g
}

// release drops what a Service has and waits for. It returns the Services that may now get what they wait for.
func (b *book) release(service types.NamespacedName) []types.NamespacedName {
	b.wait(service, false)
	if len(b.held[service]) == 0 {
		return nil
	}
	b.drop(service)
	return b.others(service)
}

// occupy gives a claim the slots of addresses that are free.
func (b *book) occupy(c claim, addresses []netip.Addr) {
	for _, a := range addresses {
		if b.conflict(c, offer{}, a) != "" {
			continue
		}
		for _, p := range c.ports {
			s := slot{a, p}
			b.owners[s] = c.service
			b.held[c.service] = append(b.held[c.service], s)
		}
		b.users[a]++
		if c.alone {
			b.alone[a] = true
		}
	}
}

// drop takes a Service's slots back.
func (b *book) drop(service types.NamespacedName) {
	for _, a := range addressesOf(b.held[service]) {
		if b.users[a]--; b.users[a] == 0 {
			delete(b.users, a)
			delete(b.alone, a)
		}
	}
	for _, s := range b.held[service] {
		delete(b.owners, s)
	}
	delete(b.held, service)
}

// wait notes whether a Service waits.
func (b *book) wait(service types.NamespacedName, waits bool) {
	i := slices.Index(b.waiting, service)
	switch {
	case waits && i < 0:
		b.waiting = append(b.waiting, service)
	case !waits && i >= 0:
		b.waiting = slices.Delete(b.waiting, i, i+1)
	}
}

// others returns the waiting Services except one.
func (b *book) others(than types.NamespacedName) []types.NamespacedName {
	return slices.DeleteFunc(slices.Clone(b.waiting), func(n types.NamespacedName) bool { return n == than })
}

// conflict returns why a claim cannot have an address: a slot and its owner. Empty: it can.
func (b *book) conflict(c claim, o offer, a netip.Addr) string {
	for _, p := range c.ports {
		s := slot{a, p}
		if by := o.reserved[s]; by != "" {
			return fmt.Sprintf("%s belongs to %s", s, by)
		}
		if owner, taken := b.owners[s]; taken && owner != c.service {
			return fmt.Sprintf("%s belongs to the Service %s", s, owner)
		}
	}
	return ""
}

// choose selects an address of a pool for a claim, in this order: the requested one, the one that it has, a free one, one that it can
// share. If there is none it returns an invalid address, and the owner of a slot that would have done.
func (b *book) choose(c claim, o offer, f corev1.IPFamily, has []netip.Addr) (_ netip.Addr, taken string) {
	fits := func(a netip.Addr) bool {
		if b.users[a] > 0 && (c.alone || b.alone[a]) {
			if taken == "" {
				taken = fmt.Sprintf("%s has a Service with another externalTrafficPolicy", a)
			}
			return false
		}
		by := b.conflict(c, o, a)
		if by != "" && taken == "" {
			taken = by
		}
		return by == ""
	}
	if c.address.IsValid() && familyOf(c.address) == f {
		switch {
		case !o.pool.has(c.address):
			return netip.Addr{}, fmt.Sprintf("%s is not in the pool", c.address)
		case fits(c.address):
			return c.address, ""
		}
		return netip.Addr{}, taken
	}
	for _, a := range has {
		if familyOf(a) == f && o.pool.has(a) && fits(a) {
			return a, ""
		}
	}
	for a := range o.pool.all(f) {
		if b.users[a] == 0 {
			return a, ""
		}
	}
	for a := range o.pool.all(f) { // all have users, so there are not too many
		if fits(a) {
			return a, ""
		}
	}
	if taken == "" {
		taken = fmt.Sprintf("the pool has no %s address", f)
	}
	return netip.Addr{}, taken
}

// addressesOf returns the addresses of slots, in order.
func addressesOf(slots []slot) (out []netip.Addr) {
	for _, s := range slots {
		if len(out) == 0 || out[len(out)-1] != s.address { // the slots of an address are neighbours
			out = append(out, s.address)
		}
	}
	return out
}

func familyOf(a netip.Addr) corev1.IPFamily {
	if a.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}
