// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/mortise-dev/mortise/internal/agent/netlab"
)

// flow is a client of UDP that keeps its port.
type flow struct {
	t *testing.T
	net.Conn
}

func (l *lab) flow(from *netlab.Host, to string) flow {
	l.t.Helper()
	f := flow{t: l.t}
	from.Do(func() (err error) { f.Conn, err = net.Dial("udp", to); return err })
	l.t.Cleanup(func() { _ = f.Close() })
	return f
}

// asks sends something and says who answers.
func (f flow) asks() string {
	f.t.Helper()
	if err := f.SetDeadline(time.Now().Add(patience)); err != nil {
		f.t.Fatal(err)
	}
	if _, err := f.Write([]byte("x")); err != nil {
		f.t.Fatal(err)
	}
	buffer := make([]byte, 100)
	n, err := f.Read(buffer)
	if err != nil {
		f.t.Fatal(err)
	}
	server, _, _ := strings.Cut(string(buffer[:n]), " ")
	return server
}

// TestPacketsToTheChosen is the table's part about which endpoints are used, and for how long.
func TestPacketsToTheChosen(t *testing.T) { eachLanguage(t, checkPacketsToTheChosen) }

func checkPacketsToTheChosen(t *testing.T, in language) {
	l := newLab(t, in)

	t.Run("hints of zones and of nodes", func(t *testing.T) {
		l := l.of(t)
		l.syncer.self.zone = "a"
		l.sync(true)
		svc := makeService("near", ips("40"))
		hinted := func(here, there func(*discoveryv1.Endpoint)) []*discoveryv1.EndpointSlice {
			return []*discoveryv1.EndpointSlice{
				makeSlice("near", at("10.244.0.2", "here", here), at("10.244.1.2", "there", there)),
				makeSlice("near", at("fd00:244::2", "here", here), at("fd00:244:0:1::2", "there", there)),
			}
		}
		none := func(*discoveryv1.Endpoint) {}
		for _, c := range []struct {
			name        string
			here, there func(*discoveryv1.Endpoint)
			servers     []string
		}{
			{"this zone's", forZone("b"), forZone("a"), []string{"other"}},
			{"this node's", forNode("here"), forNode("there"), []string{"pod1"}},
			{"none for this zone", forZone("b"), forZone("c"), []string{"pod1", "other"}},
			{"one without a hint", forZone("a"), none, []string{"pod1", "other"}},
		} {
			l.has(svc, hinted(c.here, c.there)...)
			for _, to := range []string{"10.96.0.40:80", "[fd00:96::40]:80"} {
				l.hears(l.Pod2, "tcp", to, c.servers...)
			}
		}
	})
	t.Run("a Service that grows and shrinks", func(t *testing.T) {
		l := l.of(t)
		for _, change := range []func(*corev1.Service){func(*corev1.Service) {},
			func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"198.51.100.46"} }} {
			svc := makeService("growing", ips("46"), change)
			four, six := makeSlice("growing"), makeSlice("growing", at("fd00:244::2", "here"))
			six.Endpoints = nil
			for i := range 2 * longest {
				four.Endpoints = append(four.Endpoints, at(fmt.Sprint("10.244.0.", 100+i), "here"))
				six.Endpoints = append(six.Endpoints, at(fmt.Sprintf("fd00:244::%x", 100+i), "here"))
			}
			for _, list := range [][]*discoveryv1.EndpointSlice{nil, only("growing", "10.244.0.2", "fd00:244::2", "here"), {four, six},
				everywhere("growing"), only("growing", "10.244.1.2", "fd00:244:0:1::2", "there"), nil} {
				l.has(svc, list...)
				for _, to := range []string{"10.96.0.46:80", "[fd00:96::46]:80"} {
					switch {
					case len(list) == 0:
						l.refused(l.Pod2, "tcp", to)
					case len(list[0].Endpoints) == 3:
						l.hears(l.Pod2, "tcp", to, "pod1", "pod2", "other")
					case list[0].Endpoints[0].Addresses[0] == "10.244.0.2":
						l.hears(l.Pod2, "tcp", to, "pod1")
					case len(list[0].Endpoints) == 1:
						l.hears(l.Pod2, "tcp", to, "other")
					}
				}
			}
		}
	})
	t.Run("endpoints that terminate", func(t *testing.T) {
		l := l.of(t)
		svc := makeService("ending", ips("41"))
		with := func(changes ...func(*discoveryv1.Endpoint)) []*discoveryv1.EndpointSlice {
			return []*discoveryv1.EndpointSlice{
				makeSlice("ending", at("10.244.0.2", "here", changes[0]), at("10.244.1.2", "there", changes[1])),
				makeSlice("ending", at("fd00:244::2", "here", changes[0]), at("fd00:244:0:1::2", "there", changes[1])),
			}
		}
		done := func(e *discoveryv1.Endpoint) {
			e.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false), Terminating: new(true)}
		}
		both := []string{"10.96.0.41:80", "[fd00:96::41]:80"}
		for _, to := range both {
			l.has(svc, with(leavingStill, func(*discoveryv1.Endpoint) {})...)
			l.hears(l.Pod2, "tcp", to, "other")
			l.has(svc, with(leavingStill, unready)...)
			l.hears(l.Pod2, "tcp", to, "pod1")
			l.has(svc, with(done, unready)...)
			l.refused(l.Pod2, "tcp", to)
		}
	})
	t.Run("a flow of UDP stays with an endpoint that terminates", func(t *testing.T) {
		l := l.of(t)
		svc := makeService("draining", ips("42"), udpToo)
		l.has(svc, withUDP(only("draining", "10.244.0.2", "fd00:244::2", "here"))...)
		for _, to := range []string{"10.96.0.42:80", "[fd00:96::42]:80"} {
			l.has(svc, withUDP(only("draining", "10.244.0.2", "fd00:244::2", "here"))...)
			f := l.flow(l.Pod2, to)
			if got := f.asks(); got != "pod1" {
				t.Fatalf("%s answers, want pod1", got)
			}
			l.has(svc, withUDP([]*discoveryv1.EndpointSlice{
				makeSlice("draining", at("10.244.0.2", "here", leavingStill), at("10.244.1.2", "there")),
				makeSlice("draining", at("fd00:244::2", "here", leavingStill), at("fd00:244:0:1::2", "there")),
			})...)
			if got := f.asks(); got != "pod1" {
				t.Errorf("%s answers a flow that pod1 has, which still serves", got)
			}
			l.hears(l.Pod2, "udp", to, "other")
			l.has(svc, withUDP(only("draining", "10.244.1.2", "fd00:244:0:1::2", "there"))...)
			if got := f.asks(); got != "other" {
				t.Errorf("%s answers, want other", got)
			}
		}
	})
	t.Run("flows of UDP to a node port", func(t *testing.T) {
		l := l.of(t)
		svc := makeService("portflow", ips("43"), udpToo, nodePort, func(s *corev1.Service) {
			s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30043, 30043
		})
		for _, to := range []string{"192.168.50.1:30043", "[fd00:50::1]:30043"} {
			l.has(svc, withUDP(only("portflow", "10.244.0.2", "fd00:244::2", "here"))...)
			f := l.flow(l.Client, to)
			if got := f.asks(); got != "pod1" {
				t.Fatalf("%s answers, want pod1", got)
			}
			l.has(svc, withUDP(only("portflow", "10.244.1.2", "fd00:244:0:1::2", "there"))...)
			if got := f.asks(); got != "other" {
				t.Errorf("%s answers, want other", got)
			}
		}
	})
	t.Run("a flow of UDP that is older than its Service", func(t *testing.T) {
		l := l.of(t)
		f := l.flow(l.Pod2, "203.0.113.44:80")
		if _, err := f.Write([]byte("x")); err != nil { // it is routed out of the node, and nobody answers
			t.Fatal(err)
		}
		l.has(makeService("younger", ips("44"), udpToo, balanced("203.0.113.44"), func(s *corev1.Service) {
			s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30044, 30044
		}), withUDP(only("younger", "10.244.1.2", "fd00:244:0:1::2", "there"))...)
		if got := f.asks(); got != "other" {
			t.Errorf("%s answers, want other", got)
		}
	})
	t.Run("affinity ends with its time", func(t *testing.T) {
		l := l.of(t)
		svc := makeService("brief", ips("45"), udpToo, sticky, func(s *corev1.Service) {
			s.Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds = new(int32(1))
		})
		l.has(svc, withUDP(everywhere("brief"))...)
		for _, network := range []string{"tcp", "udp"} {
			for i, to := range []string{"10.96.0.45:80", "[fd00:96::45]:80"} {
				begun := time.Now()
				server, _, err := l.Pod2.Call(t.Context(), network, to)
				if err != nil {
					t.Fatal(err)
				}
				for range 8 {
					l.hears(l.Pod2, network, to, server)
				}
				if kept, known := l.kept(l.syncer.tables[i]); known && len(kept) != 1 && time.Since(begun) < time.Second {
					t.Errorf("%s %s: %q are kept to an endpoint, want one", network, to, kept)
				}
				late := time.After(patience)
				for !l.released(l.syncer.tables[i], network, to, server) {
					select {
					case <-late:
						t.Fatalf("%s %s: still kept to %s", network, to, server)
					case <-time.After(50 * time.Millisecond):
					}
				}
				const tick = 10 * time.Millisecond // the kernel counts in its own, which are 1 to 10 ms
				if took := time.Since(begun); took < time.Second-tick {
					t.Errorf("%s %s: kept for %v", network, to, took)
				}
			}
		}
	})
}

// released reports whether nobody is kept to an endpoint any more. Where the kernel does not say so, a client that has been silent for as
// long as it is kept tries whether another one answers.
func (l *lab) released(t *table, network, to, server string) bool {
	l.t.Helper()
	kept, known := l.kept(t)
	if known {
		return len(kept) == 0
	}
	<-time.After(1100 * time.Millisecond)
	other, _, err := l.Pod2.Call(l.t.Context(), network, to)
	if err != nil {
		l.t.Fatal(err)
	}
	return other != server
}

// kept are the clients that keep to an endpoint, where they can be known: iptables' lists have those too whose time is over.
func (l *lab) kept(t *table) (out []string, known bool) {
	l.t.Helper()
	book, known := t.book.(*nftTable)
	if !known {
		return nil, false
	}
	l.Node.Do(func() error {
		all, err := book.nft.List(l.t.Context(), "set")
		if err != nil {
			return err
		}
		for _, name := range all {
			if !strings.HasPrefix(name, "affinity-") {
				continue
			}
			list, err := book.nft.ListElements(l.t.Context(), "set", name)
			if err != nil {
				return err
			}
			for _, e := range list {
				out = append(out, e.Key...)
			}
		}
		return nil
	})
	return out, true
}

// TestPacketsToAddresses is the table's part about the addresses that a Service has beside its own.
func TestPacketsToAddresses(t *testing.T) { eachLanguage(t, checkPacketsToAddresses) }

func checkPacketsToAddresses(t *testing.T, in language) {
	l := newLab(t, in)

	t.Run("external IPs", func(t *testing.T) {
		l := l.of(t)
		svc := makeService("external", ips("50"), func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"198.51.100.50", "2001:db8:1::50"} })
		for to, masqueraded := range map[string]string{"198.51.100.50:80": "192.168.60.1", "[2001:db8:1::50]:80": "fd00:60::1"} {
			l.has(svc, everywhere("external")...)
			l.hears(l.Client, "tcp", to, "pod1", "pod2", "other")
			l.hears(l.Pod1, "tcp", to, "pod1", "pod2", "other")
			l.hears(l.Node, "tcp", to, "pod1", "pod2", "other")
			l.has(svc, only("external", "10.244.1.2", "fd00:244:0:1::2", "there")...)
			l.sees(l.hears(l.Client, "tcp", to, "other"), masqueraded)
		}
		local := svc.DeepCopy()
		localOutside(local)
		l.has(local, everywhere("external")...)
		l.sees(l.hears(l.Client, "tcp", "198.51.100.50:80", "pod1", "pod2"), "192.168.50.2")
		l.sees(l.hears(l.Client, "tcp", "[2001:db8:1::50]:80", "pod1", "pod2"), "fd00:50::2")
	})
	t.Run("a load balancer that is a proxy", func(t *testing.T) {
		l := l.of(t)
		svc := makeService("proxied", ips("51"), balanced("203.0.113.51"), func(s *corev1.Service) {
			s.Spec.Ports[0].NodePort = 30051
			s.Status.LoadBalancer.Ingress[0].IPMode = new(corev1.LoadBalancerIPModeProxy)
		})
		l.has(svc, everywhere("proxied")...)
		// It goes to the load balancer, of which there is none.
		ctx, cancel := context.WithTimeout(t.Context(), quiet)
		defer cancel()
		if server, _, err := l.Pod1.Call(ctx, "tcp", "203.0.113.51:80"); err == nil {
			t.Errorf("%s answers at the address of a load balancer that is a proxy", server)
		}
		l.hears(l.Client, "tcp", "192.168.50.1:30051", "pod1", "pod2", "other")
		vip := svc.DeepCopy()
		vip.Status.LoadBalancer.Ingress[0].IPMode = new(corev1.LoadBalancerIPModeVIP)
		l.has(vip, everywhere("proxied")...)
		l.hears(l.Pod1, "tcp", "203.0.113.51:80", "pod1", "pod2", "other")
	})
	t.Run("IPv6 alone", func(t *testing.T) {
		l := l.of(t)
		l.has(makeService("six", []string{"fd00:96::52"}, nodePort, func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 30052 }),
			everywhere("six")...)
		l.hears(l.Pod1, "tcp", "[fd00:96::52]:80", "pod1", "pod2", "other")
		l.hears(l.Client, "tcp", "[fd00:50::1]:30052", "pod1", "pod2", "other")
		l.refused(l.Client, "tcp", "192.168.50.1:30052")
	})
	t.Run("an endpoint in the node's own network", func(t *testing.T) {
		l := l.of(t)
		l.Node.Serve("tcp", "192.168.50.1:8080")
		l.Node.Serve("tcp", "[fd00:50::1]:8080")
		l.has(makeService("host", ips("53"), nodePort, localOutside, func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 30053 }),
			only("host", "192.168.50.1", "fd00:50::1", "here")...)
		l.sees(l.hears(l.Pod1, "tcp", "10.96.0.53:80", "node"), "10.244.0.2")
		l.sees(l.hears(l.Pod1, "tcp", "[fd00:96::53]:80", "node"), "fd00:244::2")
		l.sees(l.hears(l.Client, "tcp", "192.168.50.1:30053", "node"), "192.168.50.2")
		l.hears(l.Node, "tcp", "10.96.0.53:80", "node")
		l.hears(l.Node, "tcp", "[fd00:96::53]:80", "node")
	})
	t.Run("one port of two protocols", func(t *testing.T) {
		l := l.of(t)
		svc := makeService("both", ips("54"), udpToo)
		list := only("both", "10.244.0.2", "fd00:244::2", "here")
		l.has(svc, list...) // UDP has no endpoints
		for _, to := range []string{"10.96.0.54:80", "[fd00:96::54]:80"} {
			l.hears(l.Pod2, "tcp", to, "pod1")
			l.refused(l.Pod2, "udp", to)
		}
		l.has(svc, withUDP(list)...)
		l.hears(l.Pod2, "udp", "10.96.0.54:80", "pod1")
	})
}

// TestPacketsOfSCTP sends the first packet of an association, made by hand: a kernel may route SCTP without speaking it.
func TestPacketsOfSCTP(t *testing.T) { eachLanguage(t, checkPacketsOfSCTP) }

func checkPacketsOfSCTP(t *testing.T, in language) {
	l := newLab(t, in)
	svc := makeService("sctp", ips("60"), nodePort, localOutside, func(s *corev1.Service) {
		s.Spec.Ports[0].Protocol, s.Spec.Ports[0].NodePort = corev1.ProtocolSCTP, 30060
	})
	list := only("sctp", "10.244.0.2", "fd00:244::2", "here")
	for _, s := range list {
		s.Ports[0].Protocol = new(corev1.ProtocolSCTP)
	}
	l.has(svc, list...)
	for _, c := range []struct {
		network, to, at, from string
		port                  uint16
		by                    *netlab.Host
	}{
		{"ip4:132", "10.96.0.60", "10.244.0.2", "10.244.0.3", 80, l.Pod2},
		{"ip6:132", "fd00:96::60", "fd00:244::2", "fd00:244::3", 80, l.Pod2},
		{"ip4:132", "192.168.50.1", "10.244.0.2", "192.168.50.2", 30060, l.Client},
		{"ip6:132", "fd00:50::1", "fd00:244::2", "fd00:50::2", 30060, l.Client},
	} {
		var in, out net.PacketConn
		l.Pod1.Do(func() (err error) { in, err = net.ListenPacket(c.network, c.at); return err })
		c.by.Do(func() (err error) { out, err = net.ListenPacket(c.network, c.from); return err })
		first := initiation(40000, c.port)
		if _, err := out.WriteTo(first, &net.IPAddr{IP: net.ParseIP(c.to)}); err != nil {
			t.Fatal(err)
		}
		if err := in.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		buffer := make([]byte, 1500)
		n, from, err := in.ReadFrom(buffer)
		if err != nil {
			t.Fatalf("SCTP to %s: %v", c.to, err)
		}
		if got := from.String(); got != c.from {
			t.Errorf("SCTP to %s: the endpoint sees %s, want %s", c.to, got, c.from)
		}
		if want := initiation(40000, 8080); !slices.Equal(buffer[:n], want) {
			t.Errorf("SCTP to %s: the endpoint gets\n%x, want\n%x", c.to, buffer[:n], want)
		}
		_, _ = in.Close(), out.Close()
	}
	// Without endpoints whoever calls is told.
	l.has(svc)
	var told, out net.PacketConn
	l.Pod2.Do(func() (err error) { told, err = net.ListenPacket("ip4:icmp", "10.244.0.3"); return err })
	defer told.Close()
	l.Pod2.Do(func() (err error) { out, err = net.ListenPacket("ip4:132", "10.244.0.3"); return err })
	defer out.Close()
	if _, err := out.WriteTo(initiation(40001, 80), &net.IPAddr{IP: net.ParseIP("10.96.0.60")}); err != nil {
		t.Fatal(err)
	}
	if err := told.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 1500)
	if n, _, err := told.ReadFrom(buffer); err != nil || n < 2 || buffer[0] != 3 || buffer[1] != 3 {
		t.Errorf("SCTP without endpoints: told %x, %v; want port unreachable", buffer[:n], err)
	}
}

// initiation is an INIT chunk from a port to a port.
func initiation(from, to uint16) []byte {
	b := make([]byte, 32)
	binary.BigEndian.PutUint16(b[0:], from)
	binary.BigEndian.PutUint16(b[2:], to)
	b[12] = 1                                // INIT; the tag before is 0
	binary.BigEndian.PutUint16(b[14:], 20)   // its length
	binary.BigEndian.PutUint32(b[16:], 7)    // the tag of what follows
	binary.BigEndian.PutUint32(b[20:], 4096) // window
	binary.BigEndian.PutUint16(b[24:], 1)    // streams out
	binary.BigEndian.PutUint16(b[26:], 1)    // and in
	binary.BigEndian.PutUint32(b[28:], 1)    // serial
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// TestOpenConnectionsOutlastTheirEndpoint has a TCP connection to an endpoint that leaves the Service: it goes on.
func TestOpenConnectionsOutlastTheirEndpoint(t *testing.T) {
	eachLanguage(t, checkOpenConnectionsOutlastTheirEndpoint)
}

func checkOpenConnectionsOutlastTheirEndpoint(t *testing.T, in language) {
	l := newLab(t, in)
	l.Pod1.Echo("10.244.0.2:9000")
	svc := makeService("open", ips("61"))
	list := only("open", "10.244.0.2", "fd00:244::2", "here")
	for _, s := range list {
		s.Ports[0].Port = new(int32(9000))
	}
	l.has(svc, list...)
	var c net.Conn
	l.Pod2.Do(func() (err error) {
		c, err = (&net.Dialer{Timeout: patience}).DialContext(t.Context(), "tcp", "10.96.0.61:80")
		return err
	})
	defer c.Close()
	says := func(what string) {
		t.Helper()
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte(what)); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(what))
		if _, err := c.Read(got); err != nil || string(got) != what {
			t.Fatalf("%q comes back as %q, %v", what, got, err)
		}
	}
	says("before")
	l.has(svc, only("open", "10.244.1.2", "fd00:244:0:1::2", "there")...)
	says("after")
	l.sync(true)
	says("all")
}
