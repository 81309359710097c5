// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podaccess

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/mortise-dev/mortise/internal/agent/netlab"
)

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func TestAddresses(t *testing.T) {
	for _, c := range []struct {
		pods []netip.Prefix
		want string
	}{
		{prefixes("10.244.0.0/16"), "[10.244.0.1]"},
		{prefixes("10.9.3.7/16", "fd00:244::/56"), "[10.9.0.1 fd00:244::1]"},
		{nil, "[]"},
	} {
		if got := fmt.Sprint(Addresses(c.pods)); got != c.want {
			t.Errorf("Addresses(%v) = %s, want %s", c.pods, got, c.want)
		}
	}
}

// TestWhoReachesIt: in networks of its own, with a listener on the node's addresses for pods, the machine and its pods are served. A
// client of its network and another node, which both have a route to the address, are not.
func TestWhoReachesIt(t *testing.T) {
	lab := netlab.New(t)
	pods := prefixes("10.244.0.0/16", "fd00:244::/56")
	port := serve(t, lab.Node, Filter{Pods: pods}, Addresses(pods))
	for _, c := range []struct {
		from *netlab.Host
		want bool
	}{{lab.Pod1, true}, {lab.Pod2, true}, {lab.Node, true}, {lab.Client, false}, {lab.Other, false}} {
		for _, a := range Addresses(pods) {
			if got := reaches(t, c.from, a, port); got != c.want {
				t.Errorf("%s reaches %s: %v, want %v", c.from.Name, a, got, c.want)
			}
		}
	}
}

// TestForeignNetwork: another CNI plug-in gives pods addresses of its own. Those behind its devices are served only while there is such a
// plug-in; the machine's network is not, although it is reached by a veth device as well.
func TestForeignNetwork(t *testing.T) {
	lab := netlab.New(t)
	pods := prefixes("10.88.0.0/16") // not those of the lab
	var isForeign atomic.Bool        // the listener's goroutine reads it
	port := serve(t, lab.Node, Filter{Pods: pods, Foreign: isForeign.Load}, Addresses(pods))
	at := Addresses(pods)[0]
	for _, foreign := range []bool{false, true} {
		isForeign.Store(foreign)
		if got := reaches(t, lab.Pod1, at, port); got != foreign {
			t.Errorf("with a foreign network: %v; a pod reaches the listener: %v", foreign, got)
		}
		if reaches(t, lab.Client, at, port) {
			t.Errorf("with a foreign network: %v; a client of the machine's network reaches the listener", foreign)
		}
	}
}

// TestPortIsTaken: the error names the address, and nothing stays open.
func TestPortIsTaken(t *testing.T) {
	loopback := []netip.Addr{netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3")}
	taken, err := net.Listen("tcp", "127.0.0.3:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	_, err = Listen(t.Context(), loopback, port, Filter{})
	if want := "listen for pods on 127.0.0.3:" + strconv.Itoa(port) + ": the port is taken by another process"; err == nil ||
		err.Error() != want {
		t.Fatalf("error %v, want %s", err, want)
	}
	again, err := net.Listen("tcp", "127.0.0.2:"+strconv.Itoa(port))
	if err != nil {
		t.Fatalf("the first listener is open still: %v", err)
	}
	_ = again.Close()
}

// serve opens the addresses on a host and answers each connection that it accepts with one line. The kernel's view that decides is the
// host's: its thread accepts.
func serve(t *testing.T, on *netlab.Host, f Filter, addresses []netip.Addr) (port int) {
	t.Helper()
	var listeners []net.Listener
	on.Do(func() (err error) {
		if err := Open(addresses); err != nil {
			return err
		}
		listeners, err = Listen(t.Context(), addresses, 0, f)
		return err
	})
	ended := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() {
			ended <- on.Try(func() error {
				for {
					c, err := l.Accept()
					if errors.Is(err, net.ErrClosed) {
						return nil
					}
					if err != nil {
						return err
					}
					_, err = io.WriteString(c, "hello\n")
					_ = c.Close()
					if err != nil {
						return err
					}
				}
			})
		}()
	}
	t.Cleanup(func() {
		for _, l := range listeners {
			_ = l.Close()
		}
		for range listeners {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		on.Do(func() error {
			err := Remove()
			if _, still := netlink.LinkByName(deviceName); still == nil {
				err = errors.Join(err, fmt.Errorf("device %s is there still", deviceName))
			}
			return errors.Join(err, Remove()) // once more is no error
		})
	})
	ports := map[int]bool{}
	for _, l := range listeners {
		port = l.Addr().(*net.TCPAddr).Port
		ports[port] = true
	}
	if len(ports) != 1 {
		t.Fatalf("ports %v, want one for all addresses", slices.Sorted(func(yield func(int) bool) {
			for p := range ports {
				if !yield(p) {
					return
				}
			}
		}))
	}
	return port
}

// reaches reports whether a host gets the line.
func reaches(t *testing.T, from *netlab.Host, at netip.Addr, port int) (got bool) {
	t.Helper()
	from.Do(func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(at, uint16(port)).String())
		if errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil {
			return fmt.Errorf("no answer in 20 s: %w", err)
		}
		if err != nil {
			return nil
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		text, err := io.ReadAll(c)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		got = strings.TrimSpace(string(text)) == "hello"
		return nil
	})
	return got
}
