// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodeaddress

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/mortise-dev/mortise/internal/agent/netlab"
)

// stage is a machine that changes, with what its node's addresses became, and when.
type stage struct {
	mu     sync.Mutex
	v      View
	looks  int
	events chan struct{}
	a      *Addresses
	became []string
	begin  time.Time
}

func newStage(ctx context.Context, v View) *stage {
	s := &stage{v: v, events: make(chan struct{}, 1), begin: time.Now()}
	o := Options{Both: true, Logger: slog.New(slog.DiscardHandler)}
	s.a = &Addresses{options: o, look: func(context.Context, Options) (View, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.looks++
		return s.v, nil
	}}
	s.a.now, _ = Pick(nil, v, o)
	s.a.Tell(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.became = append(s.became, time.Since(s.begin).String()+" "+strings.Join(s.a.Texts(), " "))
	})
	go s.a.settle(ctx, s.events)
	return s
}

// change has the machine be another after a time, and tells.
func (s *stage) change(after time.Duration, v View) {
	time.Sleep(after)
	s.mu.Lock()
	s.v = v
	s.mu.Unlock()
	select {
	case s.events <- struct{}{}:
	default:
	}
}

// TestSettle: what becomes of a node's addresses when, as its machine changes.
func TestSettle(t *testing.T) {
	whole := machine("eth0 192.0.2.1 2001:db8::1").sends(false, "192.0.2.1", "2001:db8::1")
	four := machine("eth0 192.0.2.1").sends(false, "192.0.2.1")
	bare, down := machine("eth0"), machine("(eth0)")
	leased := machine("eth0 192.0.2.5 2001:db8::1").sends(false, "192.0.2.5", "2001:db8::1")
	for _, c := range []struct {
		name, want string
		run        func(*stage)
	}{
		{"another lease", "500ms 192.0.2.5 2001:db8::1", func(s *stage) { s.change(0, leased) }},
		{"a burst", "700ms 192.0.2.5 2001:db8::1", func(s *stage) {
			s.change(0, bare)
			s.change(100*time.Millisecond, four)
			s.change(100*time.Millisecond, leased)
		}},
		{"a burst without an end", "3.1s 192.0.2.5 2001:db8::1", func(s *stage) {
			for range 40 {
				s.change(100*time.Millisecond, leased)
			}
		}},
		{"a link that flaps", "", func(s *stage) {
			s.change(0, down)
			s.change(time.Second, bare)
			s.change(2*time.Second, four)
			s.change(2*time.Second, whole)
		}},
		{"a link that is down for good", "", func(s *stage) { s.change(0, down) }},
		{"a link that is down for good, beside one of containers", "", func(s *stage) {
			s.change(0, machine("(eth0) 192.0.2.1", "docker0 172.17.0.1"))
		}},
		{"a family that goes for good", "30.5s 192.0.2.1", func(s *stage) { s.change(0, four) }},
		{"a family that is late", "", func(s *stage) {
			s.change(0, four)
			s.change(10*time.Second, four)
			s.change(20*time.Second, whole)
		}},
		{"a family that goes, and returns", "30.5s 192.0.2.1; 1m0.5s 192.0.2.1 2001:db8::1", func(s *stage) {
			s.change(0, four)
			s.change(time.Minute, whole)
		}},
		{"others' links", "", func(s *stage) {
			for range 5 {
				s.change(time.Second, machine("eth0 192.0.2.1 2001:db8::1", "veth1 192.168.9.1").sends(false, "192.0.2.1"))
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				s := newStage(ctx, whole)
				synctest.Wait()
				s.change(0, whole) // that is nothing
				time.Sleep(time.Minute)
				synctest.Wait()
				s.begin = time.Now()
				c.run(s)
				time.Sleep(time.Minute)
				synctest.Wait()
				before := s.looks
				time.Sleep(time.Hour)
				synctest.Wait()
				if s.looks != before {
					t.Errorf("it looked %d times though nothing happened", s.looks-before)
				}
				cancel()
				synctest.Wait()
				if got := strings.Join(s.became, "; "); got != c.want {
					t.Errorf("the addresses became %q, want %q", got, c.want)
				}
			})
		})
	}
}

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
	found, ended, changed := make(chan *Addresses), make(chan error, 1), make(chan []string, 10)
	go func() {
		ended <- lab.Client.Try(func() error {
			a, err := Find(ctx, Options{Both: true})
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
