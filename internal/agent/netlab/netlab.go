// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package netlab creates small networks for tests: a node with pods on a bridge, another node's pod, and a client outside, each with its
// own network namespace with real interfaces and routes. The namespaces have no names on the machine, and end with their last sockets.
//
//	client 192.168.50.2 -- 192.168.50.1 node 192.168.60.1 -- 192.168.60.2 other (10.244.1.2)
//	                                     |
//	                                 bridge 10.244.0.1
//	                                  /       \
//	                         pod1 10.244.0.2  pod2 10.244.0.3
//
// IPv6 is analogous: fd00:50::, fd00:60::, fd00:244:0::, fd00:244:1::.
package netlab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Lab is the network.
type Lab struct{ Client, Node, Other, Pod1, Pod2 *Host }

// Host is one namespace.
type Host struct {
	Name string
	fd   int
	t    testing.TB
}

// New makes the network. It requires root.
func New(t testing.TB) *Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root: networks for tests cannot be made")
	}
	l := &Lab{Client: host(t, "client"), Node: host(t, "node"), Other: host(t, "other"), Pod1: host(t, "pod1"), Pod2: host(t, "pod2")}
	l.Node.Do(func() error {
		var errs []error
		for name, value := range map[string]string{
			"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1",
			"net/bridge/bridge-nf-call-iptables": "1", "net/bridge/bridge-nf-call-ip6tables": "1",
			// Every rejected call must get an ICMP error.
			"net/ipv4/icmp_ratelimit": "0", "net/ipv6/icmp/ratelimit": "0",
			"net/ipv4/conf/all/send_redirects": "0", "net/ipv4/conf/default/send_redirects": "0",
		} {
			errs = append(errs, os.WriteFile("/proc/sys/"+name, []byte(value), 0o644))
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "bridge"
		errs = append(errs, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}), up("bridge"),
			address("bridge", "10.244.0.1/24", "fd00:244::1/64"))
		return errors.Join(errs...)
	})
	connect(l.Node, "client", l.Client, ends{"192.168.50.1/24", "fd00:50::1/64", "192.168.50.2/24", "fd00:50::2/64"})
	connect(l.Node, "other", l.Other, ends{"192.168.60.1/24", "fd00:60::1/64", "192.168.60.2/24", "fd00:60::2/64"})
	plug(l.Node, l.Pod1, "10.244.0.2/24", "fd00:244::2/64")
	plug(l.Node, l.Pod2, "10.244.0.3/24", "fd00:244::3/64")
	l.Other.Do(func() error { return address("lo", "10.244.1.2/32", "fd00:244:0:1::2/128") })
	for h, via := range map[*Host][2]string{
		l.Client: {"192.168.50.1", "fd00:50::1"}, l.Other: {"192.168.60.1", "fd00:60::1"}, l.Node: {"192.168.50.2", "fd00:50::2"},
		l.Pod1: {"10.244.0.1", "fd00:244::1"}, l.Pod2: {"10.244.0.1", "fd00:244::1"},
	} {
		h.Do(func() error { return errors.Join(route("", via[0]), route("", via[1])) })
	}
	l.Node.Do(func() error {
		return errors.Join(route("10.244.1.0/24", "192.168.60.2"), route("fd00:244:0:1::/64", "fd00:60::2"))
	})
	return l
}

// Outside makes a client of the process's own namespace, with a link to it like the one that New makes to the node: 192.168.50.1 is here,
// and 192.168.50.2 there.
func Outside(t testing.TB) *Host {
	t.Helper()
	fd, err := unix.Open("/proc/self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("open own network namespace: %v", err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	here, client := &Host{Name: "node", fd: fd, t: t}, host(t, "client")
	here.Do(func() error { return up("lo") })
	connect(here, "client", client, ends{"192.168.50.1/24", "fd00:50::1/64", "192.168.50.2/24", "fd00:50::2/64"})
	client.Do(func() error { return errors.Join(route("", "192.168.50.1"), route("", "fd00:50::1")) })
	here.Do(func() error { return errors.Join(route("", "192.168.50.2"), route("", "fd00:50::2")) })
	return client
}

// Apart runs f on a thread that ends with it, because f may change the thread's namespaces. It never uses the process's main thread: that
// does not end with its goroutine, and would stay in these namespaces for good.
func Apart(f func()) {
	go func() {
		runtime.LockOSThread() // never unlocked, except for the main thread
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		defer runtime.UnlockOSThread()
		elsewhere := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(elsewhere)
			f()
		}()
		<-elsewhere // until then this goroutine keeps the main thread
	}()
}

func host(t testing.TB, name string) *Host {
	t.Helper()
	made := make(chan int)
	failed := make(chan error)
	Apart(func() {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			failed <- fmt.Errorf("make a network namespace: %w", err)
			return
		}
		fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			failed <- fmt.Errorf("open a network namespace: %w", err)
			return
		}
		made <- fd
	})
	select {
	case err := <-failed:
		t.Fatal(err)
		return nil
	case fd := <-made:
		h := &Host{Name: name, fd: fd, t: t}
		t.Cleanup(func() { _ = unix.Close(fd) })
		h.Do(func() error {
			// An IPv6 address is usable immediately: no other host can have it.
			err := os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0o644)
			return errors.Join(err, up("lo"))
		})
		return h
	}
}

// Do runs f in the namespace, on its own thread: everything that f opens, starts or writes belongs there. f must not use other goroutines
// for that.
func (h *Host) Do(f func() error) {
	h.t.Helper()
	if err := h.Try(f); err != nil {
		h.t.Fatalf("%s: %v", h.Name, err)
	}
}

// Try is like Do for functions that may fail.
func (h *Host) Try(f func() error) error {
	done := make(chan error)
	Apart(func() {
		if err := unix.Setns(h.fd, unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter a network namespace: %w", err)
			return
		}
		done <- f()
	})
	return <-done
}

// Serve serves an address by TCP or UDP. It responds with the host's name and the client's address.
func (h *Host) Serve(network, at string) {
	h.t.Helper()
	h.Do(func() error {
		switch network {
		case "tcp":
			return h.accept(at, func(c net.Conn) {
				from, _, _ := net.SplitHostPort(c.RemoteAddr().String())
				_, _ = fmt.Fprintf(c, "%s %s\n", h.Name, from)
			})
		default:
			c, err := net.ListenPacket(network, at)
			if err != nil {
				return err
			}
			h.t.Cleanup(func() { _ = c.Close() })
			go func() {
				buffer := make([]byte, 1500)
				for {
					_, from, err := c.ReadFrom(buffer)
					if err != nil {
						return
					}
					ip, _, _ := net.SplitHostPort(from.String())
					_, _ = c.WriteTo([]byte(h.Name+" "+ip+"\n"), from)
				}
			}()
		}
		return nil
	})
}

// Echo serves an address by TCP. It sends back what it receives, on connections that stay open.
func (h *Host) Echo(at string) {
	h.t.Helper()
	h.Do(func() error {
		return h.accept(at, func(c net.Conn) { _, _ = io.Copy(c, c) })
	})
}

// accept listens on a TCP address until the test ends, and closes each connection when answer has returned. It is called on the host.
func (h *Host) accept(at string, answer func(net.Conn)) error {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	h.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				answer(c)
			}()
		}
	}()
	return nil
}

// Call connects to such a server, and returns its response: the server's name, and the client's address from the server's point of view.
func (h *Host) Call(ctx context.Context, network, to string) (server, seen string, err error) {
	err = h.Try(func() error {
		c, err := (&net.Dialer{}).DialContext(ctx, network, to)
		if err != nil {
			return err
		}
		defer c.Close()
		until, ok := ctx.Deadline()
		if !ok {
			until = time.Now().Add(30 * time.Second)
		}
		if err := c.SetDeadline(until); err != nil {
			return err
		}
		if network == "udp" {
			if _, err := io.WriteString(c, "hello"); err != nil {
				return err
			}
		}
		line, err := bufio.NewReader(c).ReadString('\n')
		if err != nil {
			return err
		}
		server, seen, _ = strings.Cut(strings.TrimSpace(line), " ")
		return nil
	})
	return server, seen, err
}

func up(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

func address(name string, list ...string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, text := range list {
		a, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		if strings.Contains(text, ":") {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, a); err != nil {
			return fmt.Errorf("give %s to %s: %w", text, name, err)
		}
	}
	return nil
}

// route adds a route to a prefix, or the default route.
func route(to, via string) error {
	r := &netlink.Route{Gw: net.ParseIP(via)}
	if to == "" {
		to = "0.0.0.0/0"
		if strings.Contains(via, ":") {
			to = "::/0"
		}
	}
	_, dst, err := net.ParseCIDR(to)
	if err != nil {
		return err
	}
	r.Dst = dst
	if err := netlink.RouteAdd(r); err != nil {
		return fmt.Errorf("route to %s via %s: %w", to, via, err)
	}
	return nil
}

// ends are the addresses of both ends of a link, of both IP families.
type ends struct{ a4, a6, b4, b6 string }

// connect links two hosts.
func connect(a *Host, name string, b *Host, at ends) {
	a.t.Helper()
	cable(a, name, b)
	a.Do(func() error { return errors.Join(up(name), address(name, at.a4, at.a6)) })
	b.Do(func() error { return errors.Join(up("eth0"), address("eth0", at.b4, at.b6)) })
}

// plug connects a pod to the node's bridge. As with the CNI plug-in, traffic from a pod may go back to it.
func plug(node, pod *Host, v4, v6 string) {
	node.t.Helper()
	cable(node, pod.Name, pod)
	node.Do(func() error {
		link, err := netlink.LinkByName(pod.Name)
		if err != nil {
			return err
		}
		bridge, err := netlink.LinkByName("bridge")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetMaster(link, bridge), netlink.LinkSetHairpin(link, true), netlink.LinkSetUp(link))
	})
	pod.Do(func() error { return errors.Join(up("eth0"), address("eth0", v4, v6)) })
}

func cable(a *Host, name string, b *Host) {
	a.t.Helper()
	a.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(b.fd)})
	})
}
