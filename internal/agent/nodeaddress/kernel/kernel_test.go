// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/mortise-dev/mortise/internal/agent/netlab"
	"github.com/mortise-dev/mortise/internal/agent/nodeaddress"
	"github.com/mortise-dev/mortise/internal/agent/nodeaddress/kernel"
)

// TestFollow: in a network namespace, the kernel tells of leases that change, of IPv6 that comes, and of a link that flaps.
func TestFollow(t *testing.T) {
	lab := netlab.New(t)
	run := func(f func(netlink.Link) error) {
		t.Helper()
		lab.Client.Do(func() error {
			eth, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return f(eth)
		})
	}
	address := func(text string, flags int) *netlink.Addr {
		a, err := netlink.ParseAddr(text)
		if err != nil {
			t.Fatal(err)
		}
		a.Flags = flags
		return a
	}
	run(func(eth netlink.Link) error { return netlink.AddrDel(eth, address("fd00:50::2/64", 0)) })

	ctx, cancel := context.WithCancel(t.Context())
	found, ended, changed := make(chan *nodeaddress.Addresses), make(chan error, 1), make(chan []string, 10)
	go func() {
		ended <- lab.Client.Try(func() error {
			a, err := nodeaddress.Find(ctx, kernel.Linux{}, nodeaddress.Options{Both: true})
			if err != nil {
				close(found)
				return err
			}
			a.Tell(func() { changed <- a.Texts() })
			found <- a
			return a.Run(ctx)
		})
	}()
	a, ok := <-found
	if !ok {
		t.Fatal(<-ended)
	}
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	next := func(what, want string) {
		t.Helper()
		select {
		case got := <-changed:
			if strings.Join(got, " ") != want {
				t.Fatalf("%s: the addresses are %q, want %q", what, got, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: the addresses are still %q, want %q", what, a.Texts(), want)
		}
	}
	if got := strings.Join(a.Texts(), " "); got != "192.168.50.2" {
		t.Fatalf("at first the addresses are %q", got)
	}
	route := func() error {
		return netlink.RouteAdd(&netlink.Route{Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Gw: net.ParseIP("192.168.50.1")})
	}
	run(func(eth netlink.Link) error { // as a DHCP client does it: all goes, then all comes
		return errors.Join(netlink.AddrDel(eth, address("192.168.50.2/24", 0)), netlink.AddrAdd(eth, address("192.168.50.7/24", 0)), route())
	})
	next("another lease", "192.168.50.7")
	// Tentative for as long as others could object; temporary and deprecated ones never become the node's.
	run(func(eth netlink.Link) error {
		dead := address("fd00:50::d/64", unix.IFA_F_NODAD)
		dead.ValidLft, dead.PreferedLft = 1000, 0
		return errors.Join(os.WriteFile("/proc/sys/net/ipv6/conf/eth0/accept_dad", []byte("1"), 0o644), netlink.AddrAdd(eth, dead),
			netlink.AddrAdd(eth, address("fd00:50::7/64", 0)))
	})
	next("IPv6 comes", "192.168.50.7 fd00:50::7")
	run(func(eth netlink.Link) error { return netlink.AddrAdd(eth, address("fd00:50::8/64", unix.IFA_F_NODAD)) })
	run(func(eth netlink.Link) error {
		if err := netlink.LinkSetDown(eth); err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetUp(eth), route(), netlink.AddrAdd(eth, address("fd00:50::7/64", unix.IFA_F_NODAD)))
	})
	// The flap changed nothing: what comes next is what comes after it.
	run(func(eth netlink.Link) error {
		return errors.Join(netlink.AddrDel(eth, address("192.168.50.7/24", 0)), netlink.AddrAdd(eth, address("192.168.50.9/24", 0)), route())
	})
	next("a link has flapped, then another lease", "192.168.50.9 fd00:50::7")
}
