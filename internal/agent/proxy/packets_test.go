// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/knftables"

	"github.com/mortise-dev/mortise/internal/agent/netfilter"
	"github.com/mortise-dev/mortise/internal/agent/netlab"
)

// TestPackets drives Services from outside, by real packets: the table of what upstream's network semantics promise.
func TestPackets(t *testing.T) { eachLanguage(t, checkPackets) }

func checkPackets(t *testing.T, in language) {
	l := newLab(t, in)

	t.Run("cluster IP", func(t *testing.T) {
		l := l.of(t)
		l.has(makeService("plain", ips("10"), udpToo), withUDP(everywhere("plain"))...)
		for _, network := range []string{"tcp", "udp"} {
			for _, to := range []string{"10.96.0.10:80", "[fd00:96::10]:80"} {
				l.hears(l.Pod1, network, to, "pod1", "pod2", "other")
				l.hears(l.Node, network, to, "pod1", "pod2", "other")
			}
		}
	})
	t.Run("pods see whom they are called by", func(t *testing.T) {
		l := l.of(t)
		l.has(makeService("source", ips("11")), only("source", "10.244.0.3", "fd00:244::3", "here")...)
		l.sees(l.hears(l.Pod1, "tcp", "10.96.0.11:80", "pod2"), "10.244.0.2")
		l.sees(l.hears(l.Pod1, "tcp", "[fd00:96::11]:80", "pod2"), "fd00:244::2")
	})
	t.Run("from outside a cluster IP is masqueraded", func(t *testing.T) {
		l := l.of(t)
		l.has(makeService("outside", ips("12")), only("outside", "10.244.1.2", "fd00:244:0:1::2", "there")...)
		l.sees(l.hears(l.Client, "tcp", "10.96.0.12:80", "other"), "192.168.60.1")
		l.sees(l.hears(l.Client, "tcp", "[fd00:96::12]:80", "other"), "fd00:60::1")
	})
	t.Run("hairpin", func(t *testing.T) {
		l := l.of(t)
		l.has(makeService("hairpin", ips("13"), udpToo), withUDP(only("hairpin", "10.244.0.2", "fd00:244::2", "here"))...)
		for _, network := range []string{"tcp", "udp"} {
			l.sees(l.hears(l.Pod1, network, "10.96.0.13:80", "pod1"), "10.244.0.1")
			l.sees(l.hears(l.Pod1, network, "[fd00:96::13]:80", "pod1"), "fd00:244::1")
		}
	})
	t.Run("no endpoints", func(t *testing.T) {
		l := l.of(t)
		l.has(makeService("empty", ips("14"), udpToo, nodePort, func(s *corev1.Service) {
			s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30014, 30014
			s.Spec.ExternalIPs = []string{"198.51.100.14"}
		}))
		for _, network := range []string{"tcp", "udp"} {
			for _, from := range []*netlab.Host{l.Pod1, l.Node} {
				l.refused(from, network, "10.96.0.14:80")
				l.refused(from, network, "[fd00:96::14]:80")
			}
			l.refused(l.Client, network, "192.168.50.1:30014")
			l.refused(l.Client, network, "198.51.100.14:80")
		}
	})
	t.Run("ports and addresses that no Service has", func(t *testing.T) {
		l := l.of(t)
		l.has(makeService("ports", ips("15")), everywhere("ports")...)
		l.refused(l.Pod1, "tcp", "10.96.0.15:81")
		l.refused(l.Pod1, "udp", "10.96.0.15:80")
		l.dropped(l.Pod1, "tcp", "10.96.0.99:80")
	})
	t.Run("node port on all addresses", func(t *testing.T) {
		l := l.of(t)
		l.has(makeService("nodeport", ips("16"), nodePort), everywhere("nodeport")...)
		for _, to := range []string{"192.168.50.1", "192.168.60.1", "10.244.0.1", "fd00:50::1", "fd00:60::1"} {
			l.hears(l.Client, "tcp", net.JoinHostPort(to, "30080"), "pod1", "pod2", "other")
		}
		l.hears(l.Pod1, "tcp", "192.168.50.1:30080", "pod1", "pod2", "other")
		l.hears(l.Node, "tcp", "192.168.50.1:30080", "pod1", "pod2", "other")
		l.refused(l.Node, "tcp", "127.0.0.1:30080")
		l.has(makeService("nodeport", ips("16"), nodePort), only("nodeport", "10.244.0.2", "fd00:244::2", "here")...)
		l.sees(l.hears(l.Client, "tcp", "192.168.50.1:30080", "pod1"), "10.244.0.1") // masqueraded, by the policy Cluster
	})
	t.Run("external policy Local keeps the source", func(t *testing.T) {
		l := l.of(t)
		local := makeService("local", ips("17"), balanced("203.0.113.17", "2001:db8::17"), localOutside, func(s *corev1.Service) {
			s.Spec.Ports[0].NodePort, s.Spec.HealthCheckNodePort = 30017, 31017
		})
		list := []*discoveryv1.EndpointSlice{
			makeSlice("local", at("10.244.0.2", "here"), at("10.244.1.2", "there")),
			makeSlice("local", at("fd00:244::2", "here"), at("fd00:244:0:1::2", "there")),
		}
		l.has(local, list...)
		for to, from := range map[string]string{
			"192.168.50.1:30017": "192.168.50.2", "203.0.113.17:80": "192.168.50.2", "[fd00:50::1]:30017": "fd00:50::2",
			"[2001:db8::17]:80": "fd00:50::2",
		} {
			l.sees(l.hears(l.Client, "tcp", to, "pod1"), from)
		}
		// Pods and the node reach all of it.
		l.hears(l.Pod2, "tcp", "203.0.113.17:80", "pod1", "other")
		l.hears(l.Node, "tcp", "192.168.50.1:30017", "pod1", "other")
		if code, body := l.get("http://192.168.50.1:31017/"); code != 200 || !strings.Contains(body, `"localEndpoints": 1`) {
			t.Errorf("health is %d %s", code, body)
		}
		// One that terminates still serves, where no other is here.
		list[0].Endpoints[0], list[1].Endpoints[0] = at("10.244.0.2", "here", leavingStill), at("fd00:244::2", "here", leavingStill)
		l.has(local, list...)
		l.sees(l.hears(l.Client, "tcp", "203.0.113.17:80", "pod1"), "192.168.50.2")
		if code, body := l.get("http://192.168.50.1:31017/"); code != 503 || !strings.Contains(body, `"localEndpoints": 0`) {
			t.Errorf("health is %d %s", code, body)
		}
		l.has(local, only("local", "10.244.1.2", "fd00:244:0:1::2", "there")...)
		l.dropped(l.Client, "tcp", "192.168.50.1:30017")
		l.dropped(l.Client, "tcp", "203.0.113.17:80")
		l.hears(l.Pod2, "tcp", "203.0.113.17:80", "other")
		l.has(local)
		l.refused(l.Client, "tcp", "203.0.113.17:80")
	})
	t.Run("internal policy Local", func(t *testing.T) {
		l := l.of(t)
		l.has(makeService("inside", ips("18"), localInside), everywhere("inside")...)
		l.hears(l.Pod1, "tcp", "10.96.0.18:80", "pod1", "pod2")
		l.has(makeService("inside", ips("18"), localInside), only("inside", "10.244.1.2", "fd00:244:0:1::2", "there")...)
		l.dropped(l.Pod1, "tcp", "10.96.0.18:80")
	})
	t.Run("session affinity", func(t *testing.T) {
		l := l.of(t)
		svc := makeService("sticky", ips("19"), sticky)
		l.has(svc, everywhere("sticky")...)
		for _, to := range []string{"10.96.0.19:80", "[fd00:96::19]:80"} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			first, _, err := l.Pod2.Call(ctx, "tcp", to)
			if err != nil {
				t.Fatal(err)
			}
			for range 12 {
				l.hears(l.Pod2, "tcp", to, first)
			}
			// A change of other endpoints, and everything written anew, lets clients keep theirs.
			l.sync(true)
			for range 6 {
				l.hears(l.Pod2, "tcp", to, first)
			}
		}
	})
	t.Run("load balancer sources", func(t *testing.T) {
		l := l.of(t)
		svc := makeService("firewall", ips("20"), balanced("203.0.113.20"), func(s *corev1.Service) {
			s.Spec.Ports[0].NodePort, s.Spec.LoadBalancerSourceRanges = 30020, []string{"192.168.60.0/24"}
		})
		l.has(svc, everywhere("firewall")...)
		l.hears(l.Other, "tcp", "203.0.113.20:80", "pod1", "pod2", "other")
		l.dropped(l.Client, "tcp", "203.0.113.20:80")
		l.hears(l.Client, "tcp", "192.168.50.1:30020", "pod1", "pod2", "other") // node ports are not concerned
	})
	t.Run("a changed Service, and one that goes", func(t *testing.T) {
		l := l.of(t)
		l.has(makeService("changing", ips("21")), only("changing", "10.244.0.2", "fd00:244::2", "here")...)
		l.hears(l.Pod2, "tcp", "10.96.0.21:80", "pod1")
		l.has(makeService("changing", ips("21")), only("changing", "10.244.1.2", "fd00:244:0:1::2", "there")...)
		l.hears(l.Pod2, "tcp", "10.96.0.21:80", "other")
		gone := types.NamespacedName{Namespace: "ns", Name: "changing"}
		delete(l.source.services, gone)
		l.sync(false, gone)
		l.dropped(l.Pod2, "tcp", "10.96.0.21:80")
		l.Node.Do(func() error { return l.syncer.sweep(t.Context()) })
	})
	t.Run("flows of UDP leave an endpoint that is gone", func(t *testing.T) {
		l := l.of(t)
		svc := makeService("flows", ips("22"), udpToo)
		l.has(svc, withUDP(only("flows", "10.244.0.2", "fd00:244::2", "here"))...)
		for i, to := range []string{"10.96.0.22:80", "[fd00:96::22]:80"} {
			var c net.Conn
			l.Pod2.Do(func() (err error) { c, err = net.Dial("udp", to); return err })
			defer c.Close()
			ask := func() string {
				t.Helper()
				if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
					t.Fatal(err)
				}
				if _, err := c.Write([]byte("x")); err != nil {
					t.Fatal(err)
				}
				buffer := make([]byte, 100)
				n, err := c.Read(buffer)
				if err != nil {
					t.Fatal(err)
				}
				return string(buffer[:n])
			}
			if got := ask(); !strings.HasPrefix(got, "pod1 ") {
				t.Fatalf("%q answers, want pod1", got)
			}
			l.has(svc, withUDP(only("flows", "10.244.1.2", "fd00:244:0:1::2", "there"))...)
			if got := ask(); !strings.HasPrefix(got, "other ") {
				t.Errorf("%q answers, want other", got)
			}
			if i == 0 {
				l.has(svc, withUDP(only("flows", "10.244.0.2", "fd00:244::2", "here"))...)
			}
		}
	})
	t.Run("rules outlive their proxy", func(t *testing.T) {
		l := l.of(t)
		l.has(makeService("restart", ips("23")), only("restart", "10.244.0.2", "fd00:244::2", "here")...)
		before := l.rules()
		next := &lab{Lab: l.Lab, t: t, source: l.source}
		l.Node.Do(func() (err error) {
			next.syncer, err = open(l.syncer.options, l.source, l.syncer.self)
			return err
		})
		l.syncer.end() // its ports
		t.Cleanup(func() { next.syncer.end() })
		l.hears(l.Pod2, "tcp", "10.96.0.23:80", "pod1")
		next.sync(true)
		next.hears(l.Pod2, "tcp", "10.96.0.23:80", "pod1")
		if after := next.rules(); before != after {
			t.Errorf("a restart has changed the rules: before\n%s\nafter\n%s", before, after)
		}
	})
}

// TestTableOfAnotherVersion has a table that cannot be brought up to date: it is made anew.
func TestTableOfAnotherVersion(t *testing.T) {
	l := newLab(t, language{Backend: netfilter.NFTables})
	l.has(makeService("web", ips("10")), everywhere("web")...)
	l.Node.Do(func() error {
		nft, err := knftables.New(knftables.IPv4Family, tableName)
		if err != nil {
			return err
		}
		tx := nft.NewTransaction()
		tx.Add(&knftables.Table{})
		tx.Delete(&knftables.Table{})
		tx.Add(&knftables.Table{})
		tx.Add(&knftables.Set{Name: clusterIPs, Type: "inet_service"})
		return nft.Run(t.Context(), tx)
	})
	l.sync(true)
	l.hears(l.Pod1, "tcp", "10.96.0.10:80", "pod1", "pod2", "other")
}

// TestFailureIsMended has somebody delete the table: the next change fails, and then everything is written.
func TestFailureIsMended(t *testing.T) { eachLanguage(t, checkFailureIsMended) }

func checkFailureIsMended(t *testing.T, in language) {
	l := newLab(t, in)
	l.has(makeService("web", ips("10")), everywhere("web")...)
	l.Node.Do(func() error { return Remove(t.Context()) })
	n := l.source.set(makeService("web", ips("10")), only("web", "10.244.1.2", "fd00:244:0:1::2", "there")...)
	if err := l.Node.Try(func() error { return l.syncer.sync(t.Context(), map[types.NamespacedName]bool{n: true}, false) }); err == nil {
		t.Error("a change of rules that are gone did not fail")
	}
	if l.syncer.well.Load() {
		t.Error("the proxy says that it is well")
	}
	l.sync(false)
	l.hears(l.Pod1, "tcp", "10.96.0.10:80", "other")
}

// TestPodsOfABridgeThatIsPassedBy has no rules on the bridge: pods reach each other by Services even so.
func TestPodsOfABridgeThatIsPassedBy(t *testing.T) { eachLanguage(t, checkPodsOfABridgeThatIsPassedBy) }

func checkPodsOfABridgeThatIsPassedBy(t *testing.T, in language) {
	l := newLab(t, in, func(o *Options) { o.Bridged = false })
	l.has(makeService("web", ips("10")), only("web", "10.244.0.3", "fd00:244::3", "here")...)
	l.sees(l.hears(l.Pod1, "tcp", "10.96.0.10:80", "pod2"), "10.244.0.1")
}

// TestNodePortAddresses has node ports on the node's own addresses alone, or on some.
func TestNodePortAddresses(t *testing.T) { eachLanguage(t, checkNodePortAddresses) }

func checkNodePortAddresses(t *testing.T, in language) {
	for where, reached := range map[string][2]bool{Primary: {true, false}, "192.168.60.0/24": {false, true}} {
		t.Run(where, func(t *testing.T) {
			l := newLab(t, in, func(o *Options) { o.NodePortAddresses = []string{where} })
			l.has(makeService("web", ips("10"), nodePort), everywhere("web")...)
			for i, to := range []string{"192.168.50.1:30080", "192.168.60.1:30080"} {
				if reached[i] {
					l.hears(l.Client, "tcp", to, "pod1", "pod2", "other")
				} else {
					l.refused(l.Client, "tcp", to)
				}
			}
		})
	}
	if _, err := (Options{NodeName: "n", NodePortAddresses: []string{"eth0"}}).withDefaults(); err == nil {
		t.Error("a device is taken for addresses")
	}
}

// TestPodsByTheirInterface tells pods by where they come from: who comes by it is seen as he is, whatever its address, and others are
// masqueraded, by a mark of the owner's choice.
func TestPodsByTheirInterface(t *testing.T) { eachLanguage(t, checkPodsByTheirInterface) }

func checkPodsByTheirInterface(t *testing.T, in language) {
	for _, c := range []struct {
		name   string
		begins bool
		pod    bool // who calls
	}{{"bridge", false, true}, {"bri", true, true}, {"bri", false, false}, {"client", false, false}} {
		t.Run(fmt.Sprint(c.name, c.begins), func(t *testing.T) {
			l := newLab(t, in, func(o *Options) {
				o.PodCIDRs, o.PodInterface, o.PodInterfaceBegins, o.MasqueradeMark = nil, c.name, c.begins, 1<<5
			})
			l.has(makeService("web", ips("10"), balanced("203.0.113.10"), localOutside), only("web", "10.244.1.2", "fd00:244:0:1::2", "there")...)
			v4, v6 := "192.168.60.1", "fd00:60::1"
			if c.pod {
				v4, v6 = "10.244.0.2", "fd00:244::2"
			}
			l.sees(l.hears(l.Pod1, "tcp", "10.96.0.10:80", "other"), v4)
			l.sees(l.hears(l.Pod1, "tcp", "[fd00:96::10]:80", "other"), v6)
			if c.pod { // that there is none here is for others
				l.hears(l.Pod1, "tcp", "203.0.113.10:80", "other")
			} else {
				l.dropped(l.Pod1, "tcp", "203.0.113.10:80")
			}
		})
	}
}

// TestAnotherBackendTakesOver has a node that starts again with another backend: Services go on, and the rules of the first are gone.
func TestAnotherBackendTakesOver(t *testing.T) {
	eachLanguage(t, func(t *testing.T, in language) {
		l := newLab(t, in, func(o *Options) { o.NodePortAddresses = []string{Primary} })
		l.has(makeService("web", ips("10"), sticky, nodePort), everywhere("web")...)
		next := netfilter.NFTables
		if in.Backend == next {
			next = netfilter.IPTables
		}
		o := l.syncer.options
		o.Backend = next
		l.Node.Do(func() (err error) {
			l.syncer, err = open(o, l.source, l.syncer.self)
			return err
		})
		l.sync(true)
		l.Node.Do(func() error { return clearBackend(t.Context(), in.Backend) })
		for _, to := range []string{"10.96.0.10:80", "[fd00:96::10]:80", "192.168.50.1:30080"} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if _, _, err := l.Pod1.Call(ctx, "tcp", to); err != nil {
				t.Errorf("%s: %v", to, err)
			}
		}
		left := func() (by []netfilter.Backend) {
			l.Node.Do(func() error {
				nft, err := exec.CommandContext(t.Context(), "nft", "list", "tables").Output()
				if err != nil {
					return err
				}
				for _, family := range []string{"ip", "ip6"} {
					if strings.Contains(string(nft), family+" "+tableName+"\n") {
						by = append(by, netfilter.NFTables)
					}
				}
				for _, v6 := range []bool{false, true} {
					x, err := netfilter.OpenXTables(v6)
					if err != nil {
						return err
					}
					saved, err := x.Save(t.Context())
					if err != nil {
						return err
					}
					if strings.Contains(saved, ipTablesPrefix) {
						by = append(by, netfilter.IPTables)
					}
				}
				return nil
			})
			return by
		}
		if got := left(); !slices.Equal(got, []netfilter.Backend{next, next}) {
			t.Errorf("there are rules of %v, want those of %s in both families", got, next)
		}
		l.Node.Do(func() error { return Remove(t.Context()) })
		if got := left(); len(got) > 0 {
			t.Errorf("there are rules of %v after all were removed", got)
		}
	})
}
