// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	testclock "k8s.io/utils/clock/testing"

	"github.com/mortise-dev/mortise/internal/agent/device"
	"github.com/mortise-dev/mortise/internal/agent/dnsservice"
	"github.com/mortise-dev/mortise/internal/agent/netlab"
)

// pair listens by UDP and TCP on one port of a loopback address.
func pair(t *testing.T, at string) Listener {
	t.Helper()
	for range 20 { // the port of the one may be taken for the other
		tcp, err := net.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		udp, err := net.ListenPacket("udp", tcp.Addr().String())
		if err == nil {
			return Listener{udp, tcp}
		}
		_ = tcp.Close()
	}
	t.Fatal("no port is free for both")
	return Listener{}
}

// elsewhere is a resolver of the world's, which counts what it is asked.
type elsewhere struct {
	asked  atomic.Int64
	answer func(r *dns.Msg, stream bool) *dns.Msg
}

func (e *elsewhere) start(t *testing.T) (address string) {
	t.Helper()
	l := pair(t, "127.0.0.1:0")
	of := func(stream bool) dns.Handler {
		return dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
			e.asked.Add(1)
			if m := e.answer(r, stream); m != nil {
				_ = w.WriteMsg(m)
			}
		})
	}
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	for _, s := range []*dns.Server{{PacketConn: l.UDP, Handler: of(false)}, {Listener: l.TCP, Handler: of(true)}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		running.Go(func() { _ = s.ActivateAndServe() })
		<-started
		t.Cleanup(func() { _ = s.Shutdown() })
	}
	return l.TCP.Addr().String()
}

func record(t *testing.T, text string) dns.RR {
	t.Helper()
	rr, err := dns.NewRR(text)
	if err != nil {
		t.Fatal(err)
	}
	return rr
}

func replying(records ...dns.RR) func(*dns.Msg, bool) *dns.Msg {
	return func(r *dns.Msg, _ bool) *dns.Msg {
		m := new(dns.Msg)
		m.SetReply(r)
		m.RecursionAvailable = true
		for _, rr := range records {
			m.Answer = append(m.Answer, dns.Copy(rr))
		}
		return m
	}
}

func ask(t *testing.T, f *forwarder, name string) (*dns.Msg, error) {
	t.Helper()
	return f.ask(t.Context(), dns.Question{Name: name, Qtype: dns.TypeA, Qclass: dns.ClassINET}, false, false)
}

func to(servers ...string) func() []string {
	return func() []string { return append([]string(nil), servers...) }
}

func TestForwarding(t *testing.T) {
	e := &elsewhere{answer: replying(record(t, "www.example.org. 20 IN A 192.0.2.1"))}
	c := testclock.NewFakePassiveClock(time.Unix(1_000_000, 0))
	f := newForwarder(to(e.start(t)), c)
	for _, step := range []struct {
		after time.Duration
		asked int64
		ttl   uint32
	}{{0, 1, 20}, {5 * time.Second, 1, 15}, {14 * time.Second, 1, 1}, {time.Second, 2, 20}} {
		c.SetTime(c.Now().Add(step.after))
		m, err := ask(t, f, "WWW.example.org.")
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Answer) != 1 || m.Answer[0].Header().Ttl != step.ttl || e.asked.Load() != step.asked {
			t.Errorf("after %s: asked %d times, answer %v", step.after, e.asked.Load(), m.Answer)
		}
	}
}

func TestAResolverThatFails(t *testing.T) {
	bad := &elsewhere{answer: func(r *dns.Msg, _ bool) *dns.Msg { m := new(dns.Msg); return m.SetRcode(r, dns.RcodeServerFailure) }}
	good := &elsewhere{answer: replying(record(t, "www.example.org. 0 IN A 192.0.2.1"))}
	f := newForwarder(to(bad.start(t), good.start(t)), testclock.NewFakePassiveClock(time.Unix(1, 0)))
	for range 8 {
		if m, err := ask(t, f, "www.example.org."); err != nil || len(m.Answer) != 1 {
			t.Fatalf("%v %v", m, err)
		}
	}
	if bad.asked.Load() > 1 || good.asked.Load() != 8 {
		t.Errorf("the one that fails was asked %d times, the other %d times", bad.asked.Load(), good.asked.Load())
	}
	f = newForwarder(to(bad.start(t)), testclock.NewFakePassiveClock(time.Unix(1, 0)))
	if m, err := ask(t, f, "www.example.org."); err != nil || m.Rcode != dns.RcodeServerFailure {
		t.Errorf("%v %v", m, err)
	}
	f = newForwarder(to(), testclock.NewFakePassiveClock(time.Unix(1, 0)))
	if m, err := ask(t, f, "www.example.org."); err == nil {
		t.Errorf("nobody is there to ask, and %v", m)
	}
}

func TestAnAnswerThatNeedsTCP(t *testing.T) {
	e := &elsewhere{}
	e.answer = func(r *dns.Msg, stream bool) *dns.Msg {
		m := replying(record(t, "www.example.org. 20 IN A 192.0.2.1"))(r, stream)
		if !stream {
			m.Truncated, m.Answer = true, nil
		}
		return m
	}
	m, err := ask(t, newForwarder(to(e.start(t)), testclock.NewFakePassiveClock(time.Unix(1, 0))), "www.example.org.")
	if err != nil || m.Truncated || len(m.Answer) != 1 {
		t.Errorf("%v %v", m, err)
	}
}

// TestALoopEnds has a resolver that asks us what we ask it: the question goes round once.
func TestALoopEnds(t *testing.T) {
	e := &elsewhere{}
	f := newForwarder(nil, testclock.NewFakePassiveClock(time.Unix(1, 0)))
	e.answer = func(r *dns.Msg, _ bool) *dns.Msg {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		found, err := f.ask(ctx, r.Question[0], false, false)
		m := new(dns.Msg)
		if err != nil {
			return m.SetRcode(r, dns.RcodeServerFailure)
		}
		m.SetReply(r)
		m.Answer = found.Answer
		return m
	}
	f.servers = to(e.start(t))
	m, err := ask(t, f, "www.example.org.")
	if err != nil || m.Rcode != dns.RcodeServerFailure {
		t.Errorf("%v %v", m, err)
	}
	if n := e.asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

func TestResolvers(t *testing.T) {
	text := "# first\nnameserver 10.96.0.10\nnameserver 192.0.2.53\nsearch example.org\nnameserver fe80::1%eth0\nnameserver nonsense\noptions ndots:2\nnameserver\n"
	got := resolvers(parseResolvers(text), map[string]bool{"10.96.0.10": true})
	if d := cmp.Diff([]string{"192.0.2.53:53", "[fe80::1%eth0]:53"}, got); d != "" {
		t.Errorf("resolvers differ (-want +got):\n%s", d)
	}
}

// TestRun serves what the API has, by both ways, to real clients.
func TestRun(t *testing.T) {
	web := makeService("web", "10.96.0.7")
	client := fake.NewClientset(web, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}, testCluster().slices[0],
		testCluster().services[2])
	shared := informers.NewSharedInformerFactory(client, 0)
	if err := Prepare(shared); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	shared.Start(ctx.Done())
	for kind, ok := range shared.WaitForCacheSync(ctx.Done()) {
		if !ok {
			t.Fatalf("%s is not known", kind)
		}
	}
	l := pair(t, "127.0.0.1:0")
	done := make(chan error)
	go func() {
		done <- Run(ctx, Options{Informers: shared, Listeners: []Listener{l}, Resolvers: func() ([]string, error) { return nil, nil }})
	}()
	at := l.TCP.Addr().String()
	query := func(network, name string, kind uint16) []string {
		t.Helper()
		r := new(dns.Msg)
		r.SetQuestion(name, kind)
		m, _, err := (&dns.Client{Net: network, Timeout: 30 * time.Second}).Exchange(r, at)
		if err != nil {
			t.Fatalf("%s %s: %v", network, name, err)
		}
		return say(m)
	}
	for _, network := range []string{"udp", "tcp"} {
		if d := cmp.Diff([]string{"NOERROR", "web.ns.svc.cluster.local. 30 IN A 10.96.0.7"},
			query(network, "web.ns.svc.cluster.local.", dns.TypeA)); d != "" {
			t.Errorf("%s: answer differs (-want +got):\n%s", network, d)
		}
		if d := cmp.Diff([]string{"NOERROR", "2.0.244.10.in-addr.arpa. 30 IN PTR db-0.db.ns.svc.cluster.local."},
			query(network, "2.0.244.10.in-addr.arpa.", dns.TypePTR)); d != "" {
			t.Errorf("%s: answer differs (-want +got):\n%s", network, d)
		}
		if got := query(network, "db.ns.svc.cluster.local.", dns.TypeA); len(got) != 3 {
			t.Errorf("%s: %v", network, got)
		}
		if got := query(network, "web.none.svc.cluster.local.", dns.TypeA); got[0] != "NXDOMAIN" {
			t.Errorf("%s: %v", network, got)
		}
	}
	// A Service that comes is known when its informer is told.
	seen := make(chan struct{})
	if _, err := shared.Core().V1().Services().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
		if obj.(*corev1.Service).Name == "late" {
			close(seen)
		}
	}}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Services("ns").Create(ctx, makeService("late", "10.96.0.9"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-seen:
	case <-time.After(30 * time.Second):
		t.Fatal("the informer has not heard of a Service")
	}
	if got := query("udp", "late.ns.svc.cluster.local.", dns.TypeA); got[0] != "NOERROR" || len(got) != 2 {
		t.Errorf("late: %v", got)
	}
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Run ends with %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("Run does not end")
	}
	shared.Shutdown()
}

func TestTheServiceOfTheDNS(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")}
	client := fake.NewClientset()
	two := []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a")}
	got, made, err := dnsservice.Ensure(t.Context(), client, ranges)
	if err != nil || !made || !got.Equal(dnsservice.Found{Addresses: two, Ours: true}) {
		t.Errorf("%v %t %v", got, made, err)
	}
	got, made, err = dnsservice.Ensure(t.Context(), client, nil)
	if err != nil || made || !got.Equal(dnsservice.Found{Addresses: two, Ours: true}) {
		t.Errorf("again: %v %t %v", got, made, err)
	}
	svc, err := client.CoreV1().Services("kube-system").Get(t.Context(), "kube-dns", metav1.GetOptions{})
	if err != nil || svc.Labels["k8s-app"] != "kube-dns" || len(svc.Spec.Ports) != 2 {
		t.Errorf("%v %v", svc, err)
	}
	theirs := makeService("kube-dns", "10.96.0.10")
	theirs.Namespace = "kube-system"
	got, made, err = dnsservice.Ensure(t.Context(), fake.NewClientset(theirs), ranges)
	if err != nil || made || got.Ours || len(got.Addresses) != 1 {
		t.Errorf("somebody else's: %v %t %v", got, made, err)
	}
}

// TestDevice asks from a pod, at the cluster DNS address that the node has on a device of its own.
func TestDevice(t *testing.T) {
	lab := netlab.New(t)
	addresses := []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a")}
	var listeners []Listener
	lab.Node.Do(func() (err error) {
		for range 2 { // once more changes nothing
			if err := device.AddDummy(deviceName, []netip.Addr{netip.MustParseAddr("10.96.0.77")}); err != nil {
				return err
			}
			if err := device.AddDummy(deviceName, addresses); err != nil {
				return err
			}
		}
		listeners, err = listen(t.Context(), addresses)
		return err
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- serve(ctx, testHandler(), listeners) }()
	for _, at := range []string{"10.96.0.10:53", "[fd00:96::a]:53"} {
		for _, network := range []string{"udp", "tcp"} {
			lab.Pod1.Do(func() (err error) {
				for range 15 { // a packet of UDP may be lost: resolvers ask again
					r := new(dns.Msg)
					r.SetQuestion("web.ns.svc.cluster.local.", dns.TypeA)
					var m *dns.Msg
					if m, _, err = (&dns.Client{Net: network, Timeout: 2 * time.Second}).Exchange(r, at); err != nil {
						continue
					}
					if len(m.Answer) != 1 || !strings.Contains(m.Answer[0].String(), "10.96.0.7") {
						t.Errorf("%s %s: %v", network, at, m)
					}
					return nil
				}
				return err
			})
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	lab.Node.Do(func() error {
		for range 2 {
			if err := Remove(); err != nil {
				return err
			}
		}
		return nil
	})
}
