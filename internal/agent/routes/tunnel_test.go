// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/netlab"
)

// TestTunnelOf: what a node's tunnel is follows from the nodes alone, and all of them find the same.
func TestTunnelOf(t *testing.T) {
	a := made("a", []string{"192.168.1.1", "fd00:1::1"}, "10.244.1.0/24", "fd00:244:1::/64")
	b := made("b", []string{"192.168.2.1"}, "10.244.2.0/24", "fd00:244:2::/64")
	six := made("six", []string{"fd00:1::6"}, "10.244.6.0/24")
	nodes := []*corev1.Node{a, b, six}
	got, ok := tunnelOf("a", nodes)
	if !ok || got.address.String() != "192.168.1.1" || len(got.ranges) != 2 {
		t.Errorf("the tunnel of a: %+v, %v", got, ok)
	}
	// Both families of pods go by the one that nodes have in common; who has another is out of reach.
	for p, via := range map[string]string{"10.244.2.0/24": "192.168.2.1", "fd00:244:2::/64": "192.168.2.1"} {
		if got.remotes[netip.MustParsePrefix(p)].String() != via {
			t.Errorf("%s is behind %s, want %s", p, got.remotes[netip.MustParsePrefix(p)], via)
		}
	}
	if len(got.remotes) != 2 {
		t.Errorf("behind the tunnel are %v", got.remotes)
	}
	for _, none := range []string{"c", "bare"} {
		if _, ok := tunnelOf(none, append(nodes, made("bare", []string{"192.168.1.9"}))); ok {
			t.Errorf("a tunnel of %s, which is not there or has no range", none)
		}
	}
	if g := gateway(netip.MustParsePrefix("10.244.2.7/24")).String(); g != "10.244.2.0" {
		t.Errorf("gateway %s", g)
	}
	seen := map[string]bool{}
	for _, n := range []string{"192.168.1.1", "192.168.1.2", "10.0.1.1", "fd00::1", "fd00::2"} {
		h := hardware(netip.MustParseAddr(n))
		if len(h) != 6 || h[0]&3 != 2 || seen[h.String()] { // local, of one device
			t.Errorf("hardware address %s of %s", h, n)
		}
		seen[h.String()] = true
	}
}

// TestTunnel: in network namespaces, two nodes that a router is between reach each other's pods through the tunnel; what a node does
// not lead to any more is forgotten, and nothing of the tunnel is left when it is removed.
func TestTunnel(t *testing.T) {
	lab := netlab.New(t)
	parse := func(text string) netip.Prefix { return netip.MustParsePrefix(text) }
	near := tunnel{netip.MustParseAddr("192.168.50.2"), []netip.Prefix{parse("10.244.8.0/24"), parse("fd00:244:0:8::/64")},
		map[netip.Prefix]netip.Addr{}}
	far := tunnel{netip.MustParseAddr("192.168.60.2"), []netip.Prefix{parse("10.244.9.0/24"), parse("fd00:244:0:9::/64")},
		map[netip.Prefix]netip.Addr{}}
	for i := range near.ranges {
		near.remotes[far.ranges[i]], far.remotes[near.ranges[i]] = far.address, near.address
	}
	lab.Other.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		for _, text := range []string{"10.244.9.2/32", "fd00:244:0:9::2/128"} {
			a, err := netlink.ParseAddr(text)
			if err != nil {
				return err
			}
			if a.IP.To4() == nil {
				a.Flags = unix.IFA_F_NODAD // it is good at once
			}
			if err := netlink.AddrAdd(lo, a); err != nil {
				return err
			}
		}
		return nil
	})
	lab.Other.Serve("tcp", "10.244.9.2:80")
	lab.Other.Serve("tcp", "[fd00:244:0:9::2]:80")
	reach := func(want bool) {
		t.Helper()
		patience := 10 * time.Second
		if !want {
			patience = 500 * time.Millisecond
		}
		for at, source := range map[string]string{"10.244.9.2:80": "10.244.8.0", "[fd00:244:0:9::2]:80": "fd00:244:0:8::"} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			server, seen, err := lab.Client.Call(ctx, "tcp", at)
			cancel()
			if (err == nil && server == "other" && seen == source) != want {
				t.Errorf("%s: %q sees %q, %v; want it reached: %v", at, server, seen, err, want)
			}
		}
	}
	reach(false)
	apply := func(h *netlab.Host, tun tunnel) {
		t.Helper()
		h.Do(func() error { return errors.Join(tun.apply()...) })
	}
	apply(lab.Client, near)
	apply(lab.Other, far)
	apply(lab.Client, near) // which changes nothing
	reach(true)
	// Nobody is behind it, then the far node at another address, then at the right one again.
	alone, wrong := near, near
	alone.remotes, wrong.remotes = nil, map[netip.Prefix]netip.Addr{}
	for p := range near.remotes {
		wrong.remotes[p] = netip.MustParseAddr("192.168.60.77")
	}
	for _, without := range []tunnel{alone, wrong} {
		apply(lab.Client, without)
		reach(false)
		apply(lab.Client, near)
		reach(true)
	}
	apply(lab.Client, alone)
	lab.Client.Do(func() error {
		link, err := netlink.LinkByName(Device)
		if err != nil {
			return err
		}
		if mtu := link.Attrs().MTU; mtu != 1450 {
			t.Errorf("MTU %d", mtu)
		}
		for _, family := range []int{unix.AF_BRIDGE, unix.AF_INET, unix.AF_INET6} {
			has, err := netlink.NeighList(link.Attrs().Index, family)
			if err != nil {
				return err
			}
			for _, n := range has {
				if n.State&netlink.NUD_PERMANENT != 0 {
					t.Errorf("the tunnel remembers %s", n.String())
				}
			}
		}
		// The node gets another address: the device is made anew with it.
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		moved, at := near, "192.168.50.9"
		moved.address = netip.MustParseAddr(at)
		a, err := netlink.ParseAddr(at + "/32")
		if err != nil {
			return err
		}
		if err := errors.Join(append(moved.apply(), netlink.AddrAdd(lo, a))...); err == nil {
			t.Error("a tunnel from an address that the machine does not have")
		}
		if err := errors.Join(moved.apply()...); err != nil {
			return err
		}
		if link, err = netlink.LinkByName(Device); err != nil || link.Attrs().HardwareAddr.String() != hardware(moved.address).String() {
			t.Errorf("the device is %v, %v", link, err)
		}
		if err := errors.Join(RemoveTunnel(), RemoveTunnel()); err != nil {
			return err
		}
		if _, err := netlink.LinkByName(Device); !errors.As(err, new(netlink.LinkNotFoundError)) {
			t.Errorf("the device is left: %v", err)
		}
		return nil
	})
}
