// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// static is a cluster for tests: namespace ns, and the Services and slices given.
type static struct {
	services []*corev1.Service
	slices   []*discoveryv1.EndpointSlice
}

func (s *static) Serial() uint32             { return 7 }
func (s *static) Namespace(name string) bool { return name == "ns" || name == "empty" }
func (s *static) Service(namespace, name string) *corev1.Service {
	for _, svc := range s.services {
		if svc.Namespace == namespace && svc.Name == name {
			return svc
		}
	}
	return nil
}

func (s *static) ServiceAt(a netip.Addr) *corev1.Service {
	for _, svc := range s.services {
		if slices.Contains(svc.Spec.ClusterIPs, a.String()) {
			return svc
		}
	}
	return nil
}

func (s *static) all() (out []Endpoint) {
	for _, l := range s.slices {
		out = append(out, endpoints(l)...)
	}
	return out
}

func (s *static) Endpoints(namespace, name string) []Endpoint {
	return slices.DeleteFunc(s.all(), func(e Endpoint) bool { return e.Namespace != namespace || e.Service != name })
}

func (s *static) EndpointsAt(a netip.Addr) []Endpoint {
	return slices.DeleteFunc(s.all(), func(e Endpoint) bool { return e.Address != a })
}

func makeService(name string, ips ...string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.ServiceSpec{ClusterIP: ips[0], ClusterIPs: ips, Ports: []corev1.ServicePort{
			{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}, {Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP},
		}},
	}
}

func external(name, to string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: to},
	}
}

func makeSlice(name string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		Endpoints:  endpoints,
		Ports:      []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
	}
}

func testCluster() *static {
	portless := makeSlice("portless", discoveryv1.Endpoint{Addresses: []string{"10.244.0.9"}})
	portless.Ports = nil
	return &static{
		services: []*corev1.Service{
			makeService("web", "10.96.0.7"), makeService("both", "10.96.0.8", "fd00:96::8"), makeService("db", "None"),
			makeService("portless", "None"),
			makeService("nobody", "None"), external("out", "www.example.org"), external("alias", "web.ns.svc.cluster.local"),
			external("loop", "pool.ns.svc.cluster.local"), external("pool", "loop.ns.svc.cluster.local"),
			external("self", "self.ns.svc.cluster.local"),
			external("number", "192.0.2.1"), external("dangling", "none.ns.svc.cluster.local"),
		},
		slices: []*discoveryv1.EndpointSlice{
			makeSlice("db",
				discoveryv1.Endpoint{Addresses: []string{"10.244.0.2"}, Hostname: new("db-0")},
				discoveryv1.Endpoint{Addresses: []string{"10.244.0.3"}},
				discoveryv1.Endpoint{Addresses: []string{"10.244.0.4"}, Hostname: new("db-2"),
					Conditions: discoveryv1.EndpointConditions{Ready: new(false)}},
				discoveryv1.Endpoint{Addresses: []string{"fd00:244::5"}}),
			makeSlice("web", discoveryv1.Endpoint{Addresses: []string{"10.244.0.6"}}),
			portless,
		},
	}
}

func testHandler() *handler {
	h := &handler{
		zone:  &zone{origin: "cluster.local.", state: testCluster(), own: []netip.Addr{netip.MustParseAddr("10.96.0.10")}},
		ready: func() bool { return true }, log: slog.New(slog.DiscardHandler),
	}
	h.zone.elsewhere = func(_ context.Context, name string, kind uint16) ([]dns.RR, error) {
		rr, err := dns.NewRR(name + " 60 IN A 192.0.2.80")
		if kind != dns.TypeA {
			return nil, err
		}
		return []dns.RR{rr}, err
	}
	return h
}

// say is an answer in a line each: the code, and the records of all sections.
func say(m *dns.Msg) []string {
	out := []string{dns.RcodeToString[m.Rcode]}
	for i, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		var lines []string
		for _, rr := range section {
			if rr.Header().Rrtype != dns.TypeOPT {
				lines = append(lines, []string{"", "authority ", "extra "}[i]+strings.Join(strings.Fields(rr.String()), " "))
			}
		}
		if i != 0 || !slices.ContainsFunc(section, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeCNAME }) {
			slices.Sort(lines)
		}
		out = append(out, lines...)
	}
	return out
}

func TestAnswers(t *testing.T) {
	const soa = "authority cluster.local. 30 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. 7 7200 1800 86400 30"
	nodata, nothing := []string{"NOERROR", soa}, []string{"NXDOMAIN", soa}
	for _, c := range []struct {
		name string
		kind uint16
		want []string
	}{
		{"web.ns.svc.cluster.local.", dns.TypeA, []string{"NOERROR", "web.ns.svc.cluster.local. 30 IN A 10.96.0.7"}},
		{"WEB.ns.svc.Cluster.local.", dns.TypeA, []string{"NOERROR", "WEB.ns.svc.Cluster.local. 30 IN A 10.96.0.7"}},
		{"web.ns.svc.cluster.local.", dns.TypeAAAA, nodata},
		{"web.ns.svc.cluster.local.", dns.TypeMX, nodata},
		{"web.ns.svc.cluster.local.", dns.TypeANY, nodata},
		{"web.ns.svc.cluster.local.", dns.TypeCNAME, nodata},
		{"web.ns.svc.cluster.local.", dns.TypeSOA, nodata},
		{"both.ns.svc.cluster.local.", dns.TypeA, []string{"NOERROR", "both.ns.svc.cluster.local. 30 IN A 10.96.0.8"}},
		{"both.ns.svc.cluster.local.", dns.TypeAAAA, []string{"NOERROR", "both.ns.svc.cluster.local. 30 IN AAAA fd00:96::8"}},
		{"none.ns.svc.cluster.local.", dns.TypeA, nothing},
		{"none.ns.svc.cluster.local.", dns.TypeMX, nothing},
		{"web.other.svc.cluster.local.", dns.TypeA, nothing},
		{"other.svc.cluster.local.", dns.TypeA, nothing},
		{"ns.svc.cluster.local.", dns.TypeA, nodata},
		{"ns.pod.cluster.local.", dns.TypeA, nodata},
		{"svc.cluster.local.", dns.TypeA, nodata},
		{"svc.cluster.local.", dns.TypeNS, nodata},
		{"pod.cluster.local.", dns.TypeA, nodata},
		{"cluster.local.", dns.TypeA, nodata},
		{"cluster.local.", dns.TypeSOA, []string{"NOERROR",
			"cluster.local. 30 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. 7 7200 1800 86400 30"}},
		{"cluster.local.", dns.TypeNS, []string{"NOERROR", "cluster.local. 30 IN NS ns.dns.cluster.local.",
			"extra ns.dns.cluster.local. 30 IN A 10.96.0.10"}},
		{"ns.dns.cluster.local.", dns.TypeA, []string{"NOERROR", "ns.dns.cluster.local. 30 IN A 10.96.0.10"}},
		{"foo.cluster.local.", dns.TypeA, nothing},
		{"a.b.c.web.ns.svc.cluster.local.", dns.TypeA, nothing},
		{"dns-version.cluster.local.", dns.TypeTXT, []string{"NOERROR", `dns-version.cluster.local. 28800 IN TXT "1.1.0"`}},
		{"web.ns.svc.cluster.local.", dns.TypeTXT, nodata},

		// Headless: the endpoints that are ready.
		{"db.ns.svc.cluster.local.", dns.TypeA, []string{"NOERROR", "db.ns.svc.cluster.local. 30 IN A 10.244.0.2",
			"db.ns.svc.cluster.local. 30 IN A 10.244.0.3"}},
		{"db.ns.svc.cluster.local.", dns.TypeAAAA, []string{"NOERROR", "db.ns.svc.cluster.local. 30 IN AAAA fd00:244::5"}},
		{"db-0.db.ns.svc.cluster.local.", dns.TypeA, []string{"NOERROR", "db-0.db.ns.svc.cluster.local. 30 IN A 10.244.0.2"}},
		{"10-244-0-3.db.ns.svc.cluster.local.", dns.TypeA, []string{"NOERROR", "10-244-0-3.db.ns.svc.cluster.local. 30 IN A 10.244.0.3"}},
		{"fd00-244--5.db.ns.svc.cluster.local.", dns.TypeAAAA,
			[]string{"NOERROR", "fd00-244--5.db.ns.svc.cluster.local. 30 IN AAAA fd00:244::5"}},
		{"db-0.db.ns.svc.cluster.local.", dns.TypeAAAA, nodata},
		{"db-2.db.ns.svc.cluster.local.", dns.TypeA, nothing},
		{"nobody.ns.svc.cluster.local.", dns.TypeA, nothing},
		{"portless.ns.svc.cluster.local.", dns.TypeA, []string{"NOERROR", "portless.ns.svc.cluster.local. 30 IN A 10.244.0.9"}},
		{"portless.ns.svc.cluster.local.", dns.TypeSRV, nodata},
		{"10-244-0-6.web.ns.svc.cluster.local.", dns.TypeA, []string{"NOERROR", "10-244-0-6.web.ns.svc.cluster.local. 30 IN A 10.244.0.6"}},

		// SRV.
		{"_http._tcp.web.ns.svc.cluster.local.", dns.TypeSRV,
			[]string{"NOERROR", "_http._tcp.web.ns.svc.cluster.local. 30 IN SRV 0 100 80 web.ns.svc.cluster.local.",
				"extra web.ns.svc.cluster.local. 30 IN A 10.96.0.7"}},
		{"_dns._udp.both.ns.svc.cluster.local.", dns.TypeSRV, []string{
			"NOERROR", "_dns._udp.both.ns.svc.cluster.local. 30 IN SRV 0 50 53 both.ns.svc.cluster.local.",
			"extra both.ns.svc.cluster.local. 30 IN A 10.96.0.8", "extra both.ns.svc.cluster.local. 30 IN AAAA fd00:96::8",
		}},
		{"_http._udp.web.ns.svc.cluster.local.", dns.TypeSRV, nothing},
		{"_http._tcp.db.ns.svc.cluster.local.", dns.TypeSRV, []string{
			"NOERROR", "_http._tcp.db.ns.svc.cluster.local. 30 IN SRV 0 33 8080 10-244-0-3.db.ns.svc.cluster.local.",
			"_http._tcp.db.ns.svc.cluster.local. 30 IN SRV 0 33 8080 db-0.db.ns.svc.cluster.local.",
			"_http._tcp.db.ns.svc.cluster.local. 30 IN SRV 0 33 8080 fd00-244--5.db.ns.svc.cluster.local.",
			"extra 10-244-0-3.db.ns.svc.cluster.local. 30 IN A 10.244.0.3", "extra db-0.db.ns.svc.cluster.local. 30 IN A 10.244.0.2",
			"extra fd00-244--5.db.ns.svc.cluster.local. 30 IN AAAA fd00:244::5",
		}},
		{"web.ns.svc.cluster.local.", dns.TypeSRV, []string{
			"NOERROR", "web.ns.svc.cluster.local. 30 IN SRV 0 50 53 web.ns.svc.cluster.local.",
			"web.ns.svc.cluster.local. 30 IN SRV 0 50 80 web.ns.svc.cluster.local.",
			"extra web.ns.svc.cluster.local. 30 IN A 10.96.0.7",
		}},

		// Pods.
		{"10-244-0-2.ns.pod.cluster.local.", dns.TypeA, []string{"NOERROR", "10-244-0-2.ns.pod.cluster.local. 30 IN A 10.244.0.2"}},
		{"fd00--2.ns.pod.cluster.local.", dns.TypeAAAA, []string{"NOERROR", "fd00--2.ns.pod.cluster.local. 30 IN AAAA fd00::2"}},
		{"10-244-0-2.ns.pod.cluster.local.", dns.TypeAAAA, nodata},
		{"10-244-0-2.other.pod.cluster.local.", dns.TypeA, nothing},
		{"10-244-0-299.ns.pod.cluster.local.", dns.TypeA, nothing},
		{"web.ns.pod.cluster.local.", dns.TypeA, nothing},

		// External names.
		{"out.ns.svc.cluster.local.", dns.TypeCNAME, []string{"NOERROR", "out.ns.svc.cluster.local. 30 IN CNAME www.example.org."}},
		{"out.ns.svc.cluster.local.", dns.TypeA, []string{"NOERROR", "out.ns.svc.cluster.local. 30 IN CNAME www.example.org.",
			"www.example.org. 60 IN A 192.0.2.80"}},
		{"out.ns.svc.cluster.local.", dns.TypeAAAA, []string{"NOERROR", "out.ns.svc.cluster.local. 30 IN CNAME www.example.org."}},
		{"out.ns.svc.cluster.local.", dns.TypeSRV, nodata},
		{"x.out.ns.svc.cluster.local.", dns.TypeCNAME, nothing},
		{"alias.ns.svc.cluster.local.", dns.TypeA, []string{"NOERROR", "alias.ns.svc.cluster.local. 30 IN CNAME web.ns.svc.cluster.local.",
			"web.ns.svc.cluster.local. 30 IN A 10.96.0.7"}},
		{"loop.ns.svc.cluster.local.", dns.TypeA, nodata},
		{"self.ns.svc.cluster.local.", dns.TypeA, nodata},
		{"dangling.ns.svc.cluster.local.", dns.TypeA, nodata},
		{"number.ns.svc.cluster.local.", dns.TypeA, nothing},

		// Backwards.
		{"7.0.96.10.in-addr.arpa.", dns.TypePTR, []string{"NOERROR", "7.0.96.10.in-addr.arpa. 30 IN PTR web.ns.svc.cluster.local."}},
		{"2.0.244.10.in-addr.arpa.", dns.TypePTR, []string{"NOERROR", "2.0.244.10.in-addr.arpa. 30 IN PTR db-0.db.ns.svc.cluster.local."}},
		{"5.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.4.4.2.0.0.0.d.f.ip6.arpa.", dns.TypePTR, []string{
			"NOERROR", "5.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.4.4.2.0.0.0.d.f.ip6.arpa. 30 IN PTR fd00-244--5.db.ns.svc.cluster.local.",
		}},
		{"8.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.0.d.f.ip6.arpa.", dns.TypePTR, []string{
			"NOERROR", "8.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.0.d.f.ip6.arpa. 30 IN PTR both.ns.svc.cluster.local.",
		}},
		{"web.ns.svc.cluster.local.", dns.TypePTR, nodata},

		// What a pod's search domains make of a name: each says that there is nothing, so that the next is asked.
		{"www.example.org.ns.svc.cluster.local.", dns.TypeA, nothing},
		{"www.example.org.svc.cluster.local.", dns.TypeA, nothing},
		{"www.example.org.cluster.local.", dns.TypeA, nothing},
		{"web.ns.ns.svc.cluster.local.", dns.TypeA, nothing},
		{"web.ns.svc.ns.svc.cluster.local.", dns.TypeAAAA, nothing},
		{"web.ns.svc.cluster.local.cluster.local.", dns.TypeA, nothing},

		// Not ours, and nobody to ask.
		{"www.example.org.", dns.TypeA, []string{"REFUSED"}},
		{"9.9.9.9.in-addr.arpa.", dns.TypePTR, []string{"REFUSED"}},
		{"cluster.local.", dns.TypeAXFR, []string{"REFUSED"}},
	} {
		t.Run(dns.TypeToString[c.kind]+" "+c.name, func(t *testing.T) {
			r := new(dns.Msg)
			r.SetQuestion(c.name, c.kind)
			m := testHandler().answer(t.Context(), r)
			if d := cmp.Diff(c.want, say(m)); d != "" {
				t.Errorf("answer differs (-want +got):\n%s", d)
			}
			if m.Rcode != dns.RcodeRefused && !m.Authoritative {
				t.Error("the answer is not authoritative")
			}
		})
	}
}

func TestMessagesThatAreNoQuestion(t *testing.T) {
	plain := func(change func(*dns.Msg)) *dns.Msg {
		r := new(dns.Msg)
		r.SetQuestion("web.ns.svc.cluster.local.", dns.TypeA)
		change(r)
		return r
	}
	for _, c := range []struct {
		name string
		r    *dns.Msg
		want int
	}{
		{"an update", plain(func(r *dns.Msg) { r.Opcode = dns.OpcodeUpdate }), dns.RcodeNotImplemented},
		{"no question", plain(func(r *dns.Msg) { r.Question = nil }), dns.RcodeFormatError},
		{"two questions", plain(func(r *dns.Msg) { r.Question = append(r.Question, r.Question[0]) }), dns.RcodeFormatError},
		{"another class", plain(func(r *dns.Msg) { r.Question[0].Qclass = dns.ClassCHAOS }), dns.RcodeRefused},
		{"EDNS of the future", plain(func(r *dns.Msg) { r.SetEdns0(4096, false).IsEdns0().SetVersion(1) }), dns.RcodeBadVers},
	} {
		m := testHandler().answer(t.Context(), c.r)
		if m.Rcode != c.want || m.Id != c.r.Id || !m.Response {
			t.Errorf("%s: %s", c.name, m)
		}
		if _, err := m.Pack(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if m := testHandler().answer(t.Context(), plain(func(r *dns.Msg) { r.Response = true })); m != nil {
		t.Errorf("an answer was answered: %s", m)
	}
	h := testHandler()
	h.ready = func() bool { return false }
	if m := h.answer(t.Context(), plain(func(*dns.Msg) {})); m.Rcode != dns.RcodeServerFailure {
		t.Errorf("before the cluster is known: %s", m)
	}
}

// TestAnswersThatDoNotFit has a Service of 100 endpoints.
func TestAnswersThatDoNotFit(t *testing.T) {
	many := makeSlice("many")
	for i := range 100 {
		many.Endpoints = append(many.Endpoints, discoveryv1.Endpoint{Addresses: []string{netip.AddrFrom4([4]byte{10, 244, 1, byte(i)}).String()}})
	}
	h := testHandler()
	h.zone.state = &static{services: []*corev1.Service{makeService("many", "None")}, slices: []*discoveryv1.EndpointSlice{many}}
	for _, c := range []struct {
		size      uint16
		stream    bool
		truncated bool
		most      int
	}{{0, false, true, 512}, {1232, false, true, 1232}, {4096, false, false, 4096}, {0, true, false, 65535}} {
		r := new(dns.Msg)
		r.SetQuestion("many.ns.svc.cluster.local.", dns.TypeA)
		if c.size > 0 {
			r.SetEdns0(c.size, false)
		}
		m := h.answer(t.Context(), r)
		fit(r, m, c.stream)
		wire, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		if m.Truncated != c.truncated || len(wire) > c.most || (m.IsEdns0() != nil) != (c.size > 0) || len(m.Answer) == 0 {
			t.Errorf("%+v: %d bytes, %d answers, truncated %t", c, len(wire), len(m.Answer), m.Truncated)
		}
	}
}

// TestAClientAsksAgainByTCP has a client that is told that an answer did not fit.
func TestAClientAsksAgainByTCP(t *testing.T) {
	many := makeSlice("many")
	for i := range 100 {
		many.Endpoints = append(many.Endpoints, discoveryv1.Endpoint{Addresses: []string{netip.AddrFrom4([4]byte{10, 244, 1, byte(i)}).String()}})
	}
	h := testHandler()
	h.zone.state = &static{services: []*corev1.Service{makeService("many", "None")}, slices: []*discoveryv1.EndpointSlice{many}}
	l := pair(t, "127.0.0.1:0")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, h, []Listener{l}) }()
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, l.TCP.Addr().String())
	}}
	found, err := resolver.LookupNetIP(ctx, "ip4", "many.ns.svc.cluster.local.")
	if err != nil || len(found) != 100 {
		t.Errorf("%d addresses, %v; want 100", len(found), err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// FuzzAnswer has whatever comes by the network: an answer that can be sent comes, or none.
func FuzzAnswer(f *testing.F) {
	for _, name := range []string{"web.ns.svc.cluster.local.", "_http._tcp.db.ns.svc.cluster.local.", "2.0.244.10.in-addr.arpa.",
		"fd00--2.ns.pod.cluster.local.", "."} {
		for _, kind := range []uint16{dns.TypeA, dns.TypeSRV, dns.TypePTR, dns.TypeTXT} {
			r := new(dns.Msg)
			r.SetQuestion(name, kind)
			r.SetEdns0(1232, true)
			wire, err := r.Pack()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(wire)
		}
	}
	h := testHandler()
	f.Fuzz(func(t *testing.T, wire []byte) {
		r := new(dns.Msg)
		if r.Unpack(wire) != nil {
			return
		}
		m := h.answer(t.Context(), r)
		if m == nil {
			if !r.Response {
				t.Fatal("no answer")
			}
			return
		}
		fit(r, m, false)
		out, err := m.Pack()
		if err != nil {
			t.Fatalf("the answer to %s cannot be sent: %v", r, err)
		}
		if len(out) > 4096 || m.Id != r.Id {
			t.Fatalf("%d bytes", len(out))
		}
	})
}
