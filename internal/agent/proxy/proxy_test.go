// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"
	"sigs.k8s.io/knftables"

	"github.com/mortise-dev/mortise/internal/agent/netfilter"
)

// TestRun follows an API: Services that come, change and go, and the node's zone. Each wait is for a transaction.
func TestRun(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here", Labels: map[string]string{corev1.LabelTopologyZone: "a"}}}
	client := fake.NewClientset(node, makeService("web", []string{"10.96.0.7"}),
		makeSlice("web", at("10.244.1.2", "there", forZone("a")), at("10.244.1.3", "there", forZone("b"))))
	shared := informers.NewSharedInformerFactory(client, 0)
	if err := Prepare(shared); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	metrics, err := NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	health := NewHealth(time.Hour, clock.RealClock{}, metrics)
	eligible := func(what string, want bool) {
		t.Helper()
		if r, got := health.report(); got != want || !r.Healthy || len(r.Status) != 2 {
			t.Errorf("%s: the node may have connections: %v; health %+v", what, got, r)
		}
	}
	var mu sync.Mutex
	var v4 *knftables.Fake
	synced, cleared := make(chan struct{}, 1000), make(chan netfilter.Backend, 10)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error)
	go func() {
		done <- Run(ctx, Options{
			NodeName: "here", Client: client, Informers: shared, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Metrics: metrics,
			Health: health,
			Open: func(f knftables.Family, table string) (knftables.Interface, error) {
				made := knftables.NewFake(f, table)
				if f == knftables.IPv4Family {
					mu.Lock()
					v4 = made
					mu.Unlock()
				}
				return made, nil
			},
			Synced: func() { synced <- struct{}{} },
			forget: func(family, *frontends) (uint, error) { return 0, nil },
			clear: func(_ context.Context, b netfilter.Backend) error {
				cleared <- b
				return nil
			},
		})
	}()
	shared.Start(ctx.Done())
	// until waits for a transaction after which the rules are as they are to be.
	until := func(what string, is func(rules string) bool) {
		t.Helper()
		late := time.After(30 * time.Second)
		for {
			select {
			case <-synced:
				mu.Lock()
				rules := v4.Dump()
				mu.Unlock()
				if is(rules) {
					return
				}
			case <-late:
				t.Fatalf("%s: the rules are\n%s", what, v4.Dump())
			}
		}
	}
	has := func(parts ...string) func(string) bool {
		return func(rules string) bool {
			return !slices.ContainsFunc(parts, func(p string) bool {
				return strings.HasPrefix(p, "!") == strings.Contains(rules, strings.TrimPrefix(p, "!"))
			})
		}
	}
	until("the first", has(": 10.244.1.2 . 8080", "!: 10.244.1.3 . 8080"))
	eligible("a node", true)
	if _, err := client.CoreV1().Services("ns").Create(ctx, makeService("late", []string{"10.96.0.8"}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until("a Service that comes", has("10.96.0.8 . tcp . 80 : goto refuse"))
	if _, err := client.DiscoveryV1().EndpointSlices("ns").Create(ctx, makeSlice("late", at("10.244.1.9", "there")),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until("an endpoint that comes", has(": 10.244.1.9 . 8080", "!10.96.0.8 . tcp . 80 : goto refuse"))
	moved := node.DeepCopy()
	moved.ResourceVersion, moved.Labels[corev1.LabelTopologyZone] = "2", "b"
	moved.Spec.Taints = []corev1.Taint{{Key: leavingTaint, Effect: corev1.TaintEffectNoSchedule}}
	if _, err := client.CoreV1().Nodes().Update(ctx, moved, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until("a node that moves", has(": 10.244.1.3 . 8080", "!: 10.244.1.2 . 8080"))
	eligible("a node that is being taken away", false)
	if err := client.CoreV1().Services("ns").Delete(ctx, "late", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until("a Service that goes", has("!10.96.0.8"))
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Run ends with %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("Run does not end")
	}
	if b := <-cleared; b != netfilter.IPTables || len(cleared) > 0 {
		t.Errorf("rules of %s are removed, and of %d others; want those of iptables, once", b, len(cleared))
	}
	shared.Shutdown()
	if rules := v4.Dump(); !has(": 10.244.1.3 . 8080")(rules) {
		t.Errorf("the rules are gone with their proxy:\n%s", rules)
	}
	gathered, err := registry.Gather()
	if err != nil || len(gathered) < 8 {
		t.Errorf("%d metrics, %v", len(gathered), err)
	}
}

// slow is a kernel that takes its time.
type slow struct {
	*knftables.Fake
	takes time.Duration
}

func (s slow) Run(ctx context.Context, tx *knftables.Transaction) error {
	time.Sleep(s.takes)
	return s.Fake.Run(ctx, tx)
}

// TestRest has the machine rest after a transaction as long as that took; who comes later does not wait for it, nor does a change that
// comes after everything was written.
func TestRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newStatic()
		var mu sync.Mutex
		var synced []time.Time
		o, err := Options{
			NodeName: "here",
			Open: func(f knftables.Family, table string) (knftables.Interface, error) {
				takes := 300 * time.Millisecond
				if f == knftables.IPv6Family {
					takes = 0
				}
				return slow{knftables.NewFake(f, table), takes}, nil
			},
			Synced: func() {
				mu.Lock()
				defer mu.Unlock()
				synced = append(synced, time.Now())
			},
			clear: func(context.Context, netfilter.Backend) error { return nil },
		}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		f, end := follow(t, o, src)
		takes := func(what string, note func(), want time.Duration) {
			t.Helper()
			mu.Lock()
			synced = nil
			mu.Unlock()
			from := time.Now()
			note()
			time.Sleep(5 * time.Second)
			mu.Lock()
			defer mu.Unlock()
			if len(synced) == 0 || synced[len(synced)-1].Sub(from) != want {
				t.Errorf("%s: written at %v after %v, want it to take %v", what, synced, from, want)
			}
		}
		web := func(n int) types.NamespacedName {
			return src.set(makeService("web", []string{"10.96.0.7"}), makeSlice("web", at(fmt.Sprint("10.244.1.", n), "there")))
		}
		takes("the first", func() { f.note(true) }, gather+300*time.Millisecond)
		takes("one after a while", func() { f.note(false, web(1)) }, gather+300*time.Millisecond)
		takes("two, the second as the first is being written", func() {
			f.note(false, web(2))
			time.Sleep(gather + 100*time.Millisecond)
			f.note(false, web(3))
		}, gather+3*300*time.Millisecond)
		takes("one as all is being written", func() {
			f.note(true)
			time.Sleep(gather + 100*time.Millisecond)
			f.note(false, web(4))
		}, gather+300*time.Millisecond+gather+300*time.Millisecond)
		takes("all twice", func() {
			f.note(true)
			time.Sleep(gather + 100*time.Millisecond)
			f.note(true)
		}, gather+3*300*time.Millisecond)
		end()
	})
}

// follow writes what changes in the objects until end is called.
func follow(t *testing.T, o Options, src *static) (f *follower, end func()) {
	t.Helper()
	s, err := open(o, src, self{})
	if err != nil {
		t.Fatal(err)
	}
	f = &follower{options: o, wake: make(chan struct{}, 1), changed: map[types.NamespacedName]bool{}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.loop(ctx, s) }()
	return f, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		s.end()
	}
}

// TestLeastRest has no transaction begin sooner than a while after the one before began, and a failed one wait no longer than another.
func TestLeastRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newStatic()
		var begun []time.Time
		fails := false
		o, err := Options{
			NodeName: "here", MinSyncPeriod: 2 * time.Second, SyncPeriod: 4 * time.Second, Health: NewHealth(8*time.Second, clock.RealClock{}, nil),
			Open: func(f knftables.Family, table string) (knftables.Interface, error) {
				if f == knftables.IPv6Family {
					return nil, errors.New("there is no IPv6")
				}
				return heard{knftables.NewFake(f, table), func() error {
					begun = append(begun, time.Now())
					if fails {
						return errors.New("the kernel will not")
					}
					return nil
				}}, nil
			},
			clear: func(context.Context, netfilter.Backend) error { return nil },
		}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		f, end := follow(t, o, src)
		from := time.Now()
		f.note(true)
		time.Sleep(time.Second)
		f.note(false, src.set(makeService("web", []string{"10.96.0.7"})))
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if len(begun) != 2 || begun[1].Sub(begun[0]) != 2*time.Second {
			t.Errorf("written at %v after %v", begun, from)
		}
		if r, _ := o.Health.report(); !r.Healthy || len(r.Status) != 1 || !r.Status[corev1.IPv4Protocol].Healthy {
			t.Errorf("health: %+v", r)
		}
		begun, fails = nil, true
		f.note(false, src.set(makeService("web", []string{"10.96.0.8"})))
		time.Sleep(30 * time.Second)
		synctest.Wait()
		for i := 3; i < len(begun); i++ {
			if wait := begun[i].Sub(begun[i-1]); wait > 4*time.Second+gather {
				t.Errorf("a failed transaction waits for %v", wait)
			}
		}
		if r, _ := o.Health.report(); r.Healthy || r.Status[corev1.IPv4Protocol].Healthy {
			t.Errorf("health after half a minute of failures: %+v", r)
		}
		end()
	})
}

// heard asks before each transaction.
type heard struct {
	*knftables.Fake
	ask func() error
}

func (h heard) Run(ctx context.Context, tx *knftables.Transaction) error {
	if err := h.ask(); err != nil {
		return err
	}
	return h.Fake.Run(ctx, tx)
}

// TestWhoIsAPod says what the rules of a family take for pods, and for the node's own addresses.
func TestWhoIsAPod(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here"},
		Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.3.0/24", "fd00:244:0:3::/64"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.168.50.1"},
			{Type: corev1.NodeInternalIP, Address: "fd00:50::1"}}}}
	cluster := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	for name, c := range map[string]struct {
		options         Options
		pods, addresses string
		by              device
	}{
		"the cluster's": {Options{PodCIDRs: cluster}, "[10.244.0.0/16]", "[192.168.50.1]", device{}},
		"the node's":    {Options{PodCIDRs: cluster, NodePods: true}, "[10.244.3.0/24]", "[192.168.50.1]", device{}},
		"by an interface": {Options{PodCIDRs: cluster, PodInterface: "veth", PodInterfaceBegins: true}, "[]", "[192.168.50.1]",
			device{"veth", true}},
		"another address": {Options{Address: netip.MustParseAddr("10.0.0.1")}, "[]", "[10.0.0.1]", device{}},
		"another of IPv6": {Options{Address: netip.MustParseAddr("fd00::1")}, "[]", "[192.168.50.1]", device{}},
	} {
		c.options.Clock = clock.RealClock{}
		f := &follower{options: c.options, wake: make(chan struct{}, 1), changed: map[types.NamespacedName]bool{}}
		f.see(node)
		s := &syncer{options: c.options, source: newStatic(), self: f.self}
		got := s.around(families()[0])
		if pods, addresses := fmt.Sprint(got.pods), fmt.Sprint(got.addresses); pods != c.pods || addresses != c.addresses || got.podsBy != c.by {
			t.Errorf("%s: pods %s by %+v, the node %s", name, pods, got.podsBy, addresses)
		}
	}
}

func TestHealthPort(t *testing.T) {
	svc := makeService("web", []string{"10.96.0.7"}, balanced("203.0.113.5"), localOutside,
		func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 31000 })
	if p := healthPort(svc); p != 31000 {
		t.Errorf("the port is %d", p)
	}
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	if p := healthPort(svc); p != 0 {
		t.Errorf("the port is %d", p)
	}
}
