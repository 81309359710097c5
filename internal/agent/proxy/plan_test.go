// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/golden"
)

// static is a source for tests, which may be changed while it is read.
type static struct {
	mu       sync.Mutex
	services map[types.NamespacedName]*corev1.Service
	lists    map[types.NamespacedName][]*discoveryv1.EndpointSlice
	cidrs    []netip.Prefix
}

func newStatic() *static {
	return &static{
		services: map[types.NamespacedName]*corev1.Service{}, lists: map[types.NamespacedName][]*discoveryv1.EndpointSlice{},
		cidrs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")},
	}
}

func (s *static) service(n types.NamespacedName) *corev1.Service {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.services[n]
}

func (s *static) slices(n types.NamespacedName) []*discoveryv1.EndpointSlice {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists[n]
}

func (s *static) names() []types.NamespacedName {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.services))
}

func (s *static) ranges() []netip.Prefix { return s.cidrs }

func (s *static) set(svc *corev1.Service, list ...*discoveryv1.EndpointSlice) types.NamespacedName {
	n := types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.services[n], s.lists[n] = svc, list
	return n
}

// makeService is a Service of one port 80, named http, of TCP.
func makeService(name string, ips []string, change ...func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: ips[0], ClusterIPs: ips,
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	for _, c := range change {
		c(svc)
	}
	return svc
}

// at is an endpoint at an address, on a node.
func at(address, node string, change ...func(*discoveryv1.Endpoint)) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{address}, NodeName: &node}
	for _, c := range change {
		c(&e)
	}
	return e
}

func unready(e *discoveryv1.Endpoint) { e.Conditions.Ready = new(false) }

func leavingStill(e *discoveryv1.Endpoint) {
	e.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
}

func forZone(zone string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) {
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
	}
}

func forNode(node string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) {
		e.Hints = &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: node}}}
	}
}

// makeSlice is a slice whose port 8080 is http, of TCP.
func makeSlice(name string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	kind := discoveryv1.AddressTypeIPv4
	if len(endpoints) > 0 && strings.Contains(endpoints[0].Addresses[0], ":") {
		kind = discoveryv1.AddressTypeIPv6
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name + "-" + strings.ToLower(string(kind)),
			Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: kind, Endpoints: endpoints,
		Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
	}
}

func nodePort(svc *corev1.Service) {
	svc.Spec.Type = corev1.ServiceTypeNodePort
	svc.Spec.Ports[0].NodePort = 30080
}

func balanced(addresses ...string) func(*corev1.Service) {
	return func(svc *corev1.Service) {
		nodePort(svc)
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		for _, a := range addresses {
			svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
		}
	}
}

func localOutside(svc *corev1.Service) {
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func localInside(svc *corev1.Service) {
	svc.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
}

func sticky(svc *corev1.Service) {
	svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	svc.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(600))}}
}

func testView(v6 bool) view {
	f, pods, own := families()[0], "10.244.0.0/16", "192.168.0.1"
	if v6 {
		f, pods, own = families()[1], "fd00:244::/56", "fd00::1"
	}
	return view{family: f, node: "here", zone: "a", pods: []netip.Prefix{netip.MustParsePrefix(pods)},
		addresses: []netip.Addr{netip.MustParseAddr(own)}, plain: longest}
}

// text says what a plan has, as nftables does, without the hashes in its names.
func (o *plan) text(f family) string {
	if o == nil {
		return "nothing\n"
	}
	var out strings.Builder
	short := func(s string) string {
		for _, prefix := range []string{"service-", "local-", "external-", "firewall-", "endpoint-", "affinity-600-"} {
			for i := strings.Index(s, prefix); i >= 0; {
				from := i + len(prefix)
				if len(s) > from+8 && s[from+8] == '-' && strings.ToUpper(s[from:from+8]) == s[from:from+8] {
					s = s[:from] + s[from+9:]
				}
				next := strings.Index(s[from:], prefix)
				if next < 0 {
					break
				}
				i = from + next
			}
		}
		return s
	}
	var lines []string
	for c, rules := range o.chains {
		for _, r := range rules {
			for _, text := range r.nft(f) {
				lines = append(lines, short(c.nft())+": "+short(text))
			}
		}
	}
	for k := range o.affinity {
		lines = append(lines, fmt.Sprintf("%s: for %s", short(k.nft()), k.time))
	}
	slices.SortStableFunc(lines, func(a, b string) int {
		x, _, _ := strings.Cut(a, ":")
		y, _, _ := strings.Cut(b, ":")
		return cmp.Compare(x, y)
	})
	keys := slices.SortedFunc(maps.Keys(o.elements), element.compare)
	for _, e := range keys {
		said := e.object(o.elements[e])
		line := e.container + ": " + strings.Join(said.Key, " . ")
		if len(said.Value) > 0 {
			line += " -> " + short(strings.Join(said.Value, " . "))
		}
		lines = append(lines, line)
	}
	for _, l := range lines {
		out.WriteString(l + "\n")
	}
	if o.healthPort != 0 {
		fmt.Fprintf(&out, "health %d: %d\n", o.healthPort, o.healthy)
	}
	return out.String()
}

func TestPlans(t *testing.T) {
	ip := []string{"10.96.0.7"}
	two := makeSlice("web", at("10.244.0.2", "here"), at("10.244.1.2", "there"))
	var rules strings.Builder // of iptables
	for _, c := range []struct {
		name    string
		service *corev1.Service
		slices  []*discoveryv1.EndpointSlice
		v6      bool
		want    string
	}{
		{"two endpoints", makeService("web", ip), []*discoveryv1.EndpointSlice{two}, false, `
backend-0: 10.96.0.7 . tcp . 80 -> 10.244.0.2 . 8080
backend-1: 10.96.0.7 . tcp . 80 -> 10.244.1.2 . 8080
cluster-ips: 10.96.0.7
hairpin-connections: 10.244.0.2 . 10.244.0.2 . tcp . 8080
service-ips: 10.96.0.7 . tcp . 80 -> goto draw-2
`},
		{"one endpoint, IPv6", makeService("web", []string{"10.96.0.7", "fd00:96::7"}),
			[]*discoveryv1.EndpointSlice{two, makeSlice("web", at("fd00:244::2", "there"))}, true, `
backend-0: fd00:96::7 . tcp . 80 -> fd00:244::2 . 8080
cluster-ips: fd00:96::7
service-ips: fd00:96::7 . tcp . 80 -> goto draw-1
`},
		{"no endpoint", makeService("web", ip, nodePort), nil, false, `
cluster-ips: 10.96.0.7
no-endpoint-nodeports: tcp . 30080 -> goto refuse
no-endpoint-services: 10.96.0.7 . tcp . 80 -> goto refuse
`},
		{"none is ready", makeService("web", ip), []*discoveryv1.EndpointSlice{makeSlice("web", at("10.244.0.2", "here", unready))}, false, `
cluster-ips: 10.96.0.7
no-endpoint-services: 10.96.0.7 . tcp . 80 -> goto refuse
`},
		{"all terminate", makeService("web", ip), []*discoveryv1.EndpointSlice{makeSlice("web", at("10.244.1.2", "there", leavingStill),
			at("10.244.1.3", "there", unready))}, false, `
backend-0: 10.96.0.7 . tcp . 80 -> 10.244.1.2 . 8080
cluster-ips: 10.96.0.7
service-ips: 10.96.0.7 . tcp . 80 -> goto draw-1
`},
		{"one terminates", makeService("web", ip), []*discoveryv1.EndpointSlice{makeSlice("web", at("10.244.1.2", "there", leavingStill),
			at("10.244.1.3", "there"))}, false, `
backend-0: 10.96.0.7 . tcp . 80 -> 10.244.1.3 . 8080
cluster-ips: 10.96.0.7
service-ips: 10.96.0.7 . tcp . 80 -> goto draw-1
`},
		{"node port", makeService("web", ip, nodePort), []*discoveryv1.EndpointSlice{makeSlice("web", at("10.244.1.2", "there"))}, false, `
external-ns/web/tcp/http: mark set mark or 0x4000
external-ns/web/tcp/http: goto service-ns/web/tcp/http
service-ns/web/tcp/http: meta l4proto tcp dnat to 10.244.1.2:8080
cluster-ips: 10.96.0.7
service-ips: 10.96.0.7 . tcp . 80 -> goto service-ns/web/tcp/http
service-nodeports: tcp . 30080 -> goto external-ns/web/tcp/http
`},
		{"external policy Local, with one here", makeService("web", ip, nodePort, localOutside), []*discoveryv1.EndpointSlice{two}, false, `
external-ns/web/tcp/http: ip saddr 10.244.0.0/16 goto service-ns/web/tcp/http
external-ns/web/tcp/http: fib saddr type local mark set mark or 0x4000
external-ns/web/tcp/http: fib saddr type local goto service-ns/web/tcp/http
external-ns/web/tcp/http: goto local-ns/web/tcp/http
local-ns/web/tcp/http: meta l4proto tcp dnat to 10.244.0.2:8080
service-ns/web/tcp/http: numgen random mod 2 0 meta l4proto tcp dnat to 10.244.0.2:8080
service-ns/web/tcp/http: meta l4proto tcp dnat to 10.244.1.2:8080
cluster-ips: 10.96.0.7
hairpin-connections: 10.244.0.2 . 10.244.0.2 . tcp . 8080
service-ips: 10.96.0.7 . tcp . 80 -> goto service-ns/web/tcp/http
service-nodeports: tcp . 30080 -> goto external-ns/web/tcp/http
`},
		{"external policy Local, with none here", makeService("web", ip, balanced("203.0.113.5"), localOutside,
			func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 31000 }),
			[]*discoveryv1.EndpointSlice{makeSlice("web", at("10.244.1.2", "there"))}, false, `
external-ns/web/tcp/http: ip saddr 10.244.0.0/16 goto service-ns/web/tcp/http
external-ns/web/tcp/http: fib saddr type local mark set mark or 0x4000
external-ns/web/tcp/http: fib saddr type local goto service-ns/web/tcp/http
service-ns/web/tcp/http: meta l4proto tcp dnat to 10.244.1.2:8080
cluster-ips: 10.96.0.7
no-endpoint-nodeports: tcp . 30080 -> drop
no-endpoint-services: 203.0.113.5 . tcp . 80 -> drop
service-ips: 10.96.0.7 . tcp . 80 -> goto service-ns/web/tcp/http
service-ips: 203.0.113.5 . tcp . 80 -> goto external-ns/web/tcp/http
service-nodeports: tcp . 30080 -> goto external-ns/web/tcp/http
health 31000: 0
`},
		{"local ones terminate, others are ready", makeService("web", ip, nodePort, localOutside),
			[]*discoveryv1.EndpointSlice{makeSlice("web", at("10.244.0.2", "here", leavingStill), at("10.244.1.2", "there"))}, false, `
external-ns/web/tcp/http: ip saddr 10.244.0.0/16 goto service-ns/web/tcp/http
external-ns/web/tcp/http: fib saddr type local mark set mark or 0x4000
external-ns/web/tcp/http: fib saddr type local goto service-ns/web/tcp/http
external-ns/web/tcp/http: goto local-ns/web/tcp/http
local-ns/web/tcp/http: meta l4proto tcp dnat to 10.244.0.2:8080
service-ns/web/tcp/http: meta l4proto tcp dnat to 10.244.1.2:8080
cluster-ips: 10.96.0.7
hairpin-connections: 10.244.0.2 . 10.244.0.2 . tcp . 8080
service-ips: 10.96.0.7 . tcp . 80 -> goto service-ns/web/tcp/http
service-nodeports: tcp . 30080 -> goto external-ns/web/tcp/http
`},
		{"internal policy Local, with none here", makeService("web", ip, localInside),
			[]*discoveryv1.EndpointSlice{makeSlice("web", at("10.244.1.2", "there"))}, false, `
cluster-ips: 10.96.0.7
no-endpoint-services: 10.96.0.7 . tcp . 80 -> drop
`},
		{"load balancer with sources", makeService("web", ip, balanced("203.0.113.5", "2001:db8::5"), func(s *corev1.Service) {
			s.Spec.LoadBalancerSourceRanges = []string{" 192.168.0.0/24 ", "192.168.0.128/25", "fd00::/8"}
			s.Spec.ExternalIPs = []string{"198.51.100.1"}
		}), []*discoveryv1.EndpointSlice{makeSlice("web", at("10.244.1.2", "there"))}, false, `
external-ns/web/tcp/http: mark set mark or 0x4000
external-ns/web/tcp/http: goto service-ns/web/tcp/http
firewall-ns/web/tcp/http: ip saddr 192.168.0.0/24 return
firewall-ns/web/tcp/http: ip saddr 203.0.113.5 return
firewall-ns/web/tcp/http: drop
service-ns/web/tcp/http: meta l4proto tcp dnat to 10.244.1.2:8080
cluster-ips: 10.96.0.7
firewall-ips: 203.0.113.5 . tcp . 80 -> goto firewall-ns/web/tcp/http
service-ips: 10.96.0.7 . tcp . 80 -> goto service-ns/web/tcp/http
service-ips: 198.51.100.1 . tcp . 80 -> goto external-ns/web/tcp/http
service-ips: 203.0.113.5 . tcp . 80 -> goto external-ns/web/tcp/http
service-nodeports: tcp . 30080 -> goto external-ns/web/tcp/http
`},
		{"load balancer that is a proxy, from anywhere", makeService("web", ip, balanced("203.0.113.5"), func(s *corev1.Service) {
			s.Spec.LoadBalancerSourceRanges = []string{"0.0.0.0/0"}
			s.Status.LoadBalancer.Ingress[0].IPMode = new(corev1.LoadBalancerIPModeProxy)
		}), []*discoveryv1.EndpointSlice{makeSlice("web", at("10.244.1.2", "there"))}, false, `
external-ns/web/tcp/http: mark set mark or 0x4000
external-ns/web/tcp/http: goto service-ns/web/tcp/http
service-ns/web/tcp/http: meta l4proto tcp dnat to 10.244.1.2:8080
cluster-ips: 10.96.0.7
service-ips: 10.96.0.7 . tcp . 80 -> goto service-ns/web/tcp/http
service-nodeports: tcp . 30080 -> goto external-ns/web/tcp/http
`},
		{"affinity", makeService("web", ip, sticky), []*discoveryv1.EndpointSlice{two}, false, `
affinity-600-ns/web/tcp/http__10.244.0.2/8080: for 10m0s
affinity-600-ns/web/tcp/http__10.244.1.2/8080: for 10m0s
endpoint-ns/web/tcp/http__10.244.0.2/8080: update @affinity-600-ns/web/tcp/http__10.244.0.2/8080 { ip saddr }
endpoint-ns/web/tcp/http__10.244.0.2/8080: meta l4proto tcp dnat to 10.244.0.2:8080
endpoint-ns/web/tcp/http__10.244.1.2/8080: update @affinity-600-ns/web/tcp/http__10.244.1.2/8080 { ip saddr }
endpoint-ns/web/tcp/http__10.244.1.2/8080: meta l4proto tcp dnat to 10.244.1.2:8080
service-ns/web/tcp/http: ip saddr @affinity-600-ns/web/tcp/http__10.244.0.2/8080 goto endpoint-ns/web/tcp/http__10.244.0.2/8080
service-ns/web/tcp/http: ip saddr @affinity-600-ns/web/tcp/http__10.244.1.2/8080 goto endpoint-ns/web/tcp/http__10.244.1.2/8080
service-ns/web/tcp/http: numgen random mod 2 0 goto endpoint-ns/web/tcp/http__10.244.0.2/8080
service-ns/web/tcp/http: goto endpoint-ns/web/tcp/http__10.244.1.2/8080
cluster-ips: 10.96.0.7
hairpin-connections: 10.244.0.2 . 10.244.0.2 . tcp . 8080
service-ips: 10.96.0.7 . tcp . 80 -> goto service-ns/web/tcp/http
`},
		{"hints of zones", makeService("web", ip), []*discoveryv1.EndpointSlice{makeSlice("web", at("10.244.1.2", "there", forZone("a")),
			at("10.244.1.3", "there", forZone("b")))}, false, `
backend-0: 10.96.0.7 . tcp . 80 -> 10.244.1.2 . 8080
cluster-ips: 10.96.0.7
service-ips: 10.96.0.7 . tcp . 80 -> goto draw-1
`},
		{"hints of zones, but one has none", makeService("web", ip),
			[]*discoveryv1.EndpointSlice{makeSlice("web", at("10.244.1.2", "there", forZone("a")), at("10.244.1.3", "there"))}, false, `
backend-0: 10.96.0.7 . tcp . 80 -> 10.244.1.2 . 8080
backend-1: 10.96.0.7 . tcp . 80 -> 10.244.1.3 . 8080
cluster-ips: 10.96.0.7
service-ips: 10.96.0.7 . tcp . 80 -> goto draw-2
`},
		{"hints of nodes", makeService("web", ip), []*discoveryv1.EndpointSlice{makeSlice("web", at("10.244.0.2", "here", forNode("here")),
			at("10.244.1.3", "there", forNode("there")))}, false, `
backend-0: 10.96.0.7 . tcp . 80 -> 10.244.0.2 . 8080
cluster-ips: 10.96.0.7
hairpin-connections: 10.244.0.2 . 10.244.0.2 . tcp . 8080
service-ips: 10.96.0.7 . tcp . 80 -> goto draw-1
`},
		{"headless", makeService("web", []string{"None"}), []*discoveryv1.EndpointSlice{two}, false, "\nnothing\n"},
		{"of the other family", makeService("web", ip), []*discoveryv1.EndpointSlice{two}, true, "\nnothing\n"},
		{"somebody else's", makeService("web", ip, func(s *corev1.Service) { s.Labels = map[string]string{proxyNameLabel: "other"} }),
			[]*discoveryv1.EndpointSlice{two}, false, "\nnothing\n"},
		{"an external name", makeService("web", []string{""}, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }), nil,
			false, "\nnothing\n"},
	} {
		v := testView(c.v6)
		few := v
		few.plain = (&ipTables{}).plain()
		p := makePlan(c.service, c.slices, few)
		fmt.Fprintf(&rules, "== %s\n", c.name)
		for line := range strings.Lines(shown(p.ipTables(few), p)) {
			if rule, is := strings.CutPrefix(line, "-A "); is || line[0] == '*' {
				rules.WriteString(rule)
			}
		}
		t.Run(c.name, func(t *testing.T) {
			got := "\n" + makePlan(c.service, c.slices, v).text(v.family)
			if d := gocmp.Diff(strings.Split(c.want, "\n"), strings.Split(got, "\n")); d != "" {
				t.Errorf("plan differs (-want +got):\n%s", d)
			}
		})
	}
	golden.Compare(t, "testdata/iptables.txt", rules.String())
}

// update writes what is said, for who has read it.

// TestNamesAreShortEnough has the longest names that the API takes.
func TestNamesAreShortEnough(t *testing.T) {
	long := strings.Repeat("n", 63)
	p := &servicePort{service: types.NamespacedName{Namespace: long, Name: long}, name: long, protocol: "sctp", affinity: 86400e9}
	e := endpoint{address: netip.MustParseAddrPort("[2001:db8:1111:2222:3333:4444:5555:6666]:65535")}
	k := p.keep(e)
	for _, name := range []string{chain{external, p.text()}.nft(), chain{toEndpoint, k.of}.nft(), k.nft()} {
		if len(name) > 256 || strings.Contains(name, ":") {
			t.Errorf("%q is no name for nft", name)
		}
	}
	for _, kind := range []kind{byCluster, byLocal, external, firewall, toEndpoint} {
		if name := (chain{kind, k.of}).iptables(); len(name) > 28 || !isIPTablesChain(name) || isBucket(name) {
			t.Errorf("%q is no name for iptables", name)
		}
	}
	other := e
	other.address = netip.AddrPortFrom(e.address.Addr(), 1)
	if p.keep(e).nft() == p.keep(other).nft() || p.keep(e).iptables() == p.keep(other).iptables() {
		t.Error("two endpoints have one chain")
	}
}
