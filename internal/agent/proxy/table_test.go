// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/knftables"

	"github.com/mortise-dev/mortise/internal/agent/netlab"
)

// written is what a table's transactions said.
type written struct {
	*knftables.Fake
	last string
}

func (w *written) Run(ctx context.Context, tx *knftables.Transaction) error {
	w.last = tx.String()
	return w.Fake.Run(ctx, tx)
}

// opened is the syncer of a node "here", whose rules are where the options say.
func opened(t testing.TB, src source, o Options) *syncer {
	t.Helper()
	o.NodeName, o.Bridged, o.PodCIDRs = "here", true, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	o.forget = func(family, *frontends) (uint, error) { return 0, nil }
	o, err := o.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	s, err := open(o, src, self{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.end)
	return s
}

// fakeSyncer has tables in memory; the first is of IPv4.
func fakeSyncer(t testing.TB, src source) (*syncer, []*written) {
	t.Helper()
	var tables []*written
	s := opened(t, src, Options{Open: func(f knftables.Family, table string) (knftables.Interface, error) {
		w := &written{Fake: knftables.NewFake(f, table)}
		tables = append(tables, w)
		return w, nil
	}})
	return s, tables
}

func syncs(t testing.TB, s *syncer, all bool, names ...types.NamespacedName) {
	t.Helper()
	changed := map[types.NamespacedName]bool{}
	for _, n := range names {
		changed[n] = true
	}
	if err := s.sync(t.Context(), changed, all); err != nil {
		t.Fatal(err)
	}
}

// amongOthers is a Service with one endpoint, and twenty others.
func amongOthers() (*static, types.NamespacedName) {
	src := newStatic()
	for i := range 20 {
		name := fmt.Sprint("other", i)
		src.set(makeService(name, []string{fmt.Sprint("10.96.1.", i)}), makeSlice(name, at("10.244.0.2", "here"), at("10.244.1.2", "there")))
	}
	return src, src.set(makeService("web", []string{"10.96.0.7"}), makeSlice("web", at("10.244.0.2", "here")))
}

// hashes are what stands before the names of Services in those of their chains.
var hashes = regexp.MustCompile(`(service|external)-[A-Z2-7]{8}-ns/`)

// TestAChangeTouchesItsServiceAlone reads the transactions that follow changes of one Service among others.
func TestAChangeTouchesItsServiceAlone(t *testing.T) {
	src, web := amongOthers()
	s, tables := fakeSyncer(t, src)
	syncs(t, s, true)
	v4 := tables[0]
	if n := strings.Count(v4.last, "add rule"); n < 60 {
		t.Fatalf("the first transaction has %d rules", n)
	}
	last := func() []string {
		var out []string
		for l := range strings.Lines(v4.last) {
			l = strings.ReplaceAll(strings.TrimSpace(l), " ip "+tableName, "")
			out = append(out, hashes.ReplaceAllString(l, "$1-ns/"))
		}
		v4.last = ""
		return out
	}
	last()
	for _, step := range []struct {
		name   string
		change func()
		want   []string
	}{
		{"nothing", func() {}, nil},
		{"a second endpoint", func() {
			src.set(makeService("web", []string{"10.96.0.7"}), makeSlice("web", at("10.244.0.2", "here"), at("10.244.0.9", "here")))
		}, []string{
			"delete element service-ips { 10.96.0.7 . tcp . 80 }",
			"add element backend-1 { 10.96.0.7 . tcp . 80 : 10.244.0.9 . 8080 }",
			"add element hairpin-connections { 10.244.0.9 . 10.244.0.9 . tcp . 8080 }",
			"add element service-ips { 10.96.0.7 . tcp . 80 : goto draw-2 }",
		}},
		{"another one", func() {
			src.set(makeService("web", []string{"10.96.0.7"}), makeSlice("web", at("10.244.0.2", "here"), at("10.244.1.9", "there")))
		}, []string{
			"delete element backend-1 { 10.96.0.7 . tcp . 80 }",
			"delete element hairpin-connections { 10.244.0.9 . 10.244.0.9 . tcp . 8080 }",
			"add element backend-1 { 10.96.0.7 . tcp . 80 : 10.244.1.9 . 8080 }",
		}},
		{"a node port", func() {
			src.set(makeService("web", []string{"10.96.0.7"}, nodePort), makeSlice("web", at("10.244.0.2", "here")))
		}, []string{
			"add chain external-ns/web/tcp/http", "flush chain external-ns/web/tcp/http",
			"add chain service-ns/web/tcp/http", "flush chain service-ns/web/tcp/http",
			"add rule external-ns/web/tcp/http mark set mark or 0x4000", "add rule external-ns/web/tcp/http goto service-ns/web/tcp/http",
			"add rule service-ns/web/tcp/http meta l4proto tcp dnat to 10.244.0.2:8080",
			"delete element backend-0 { 10.96.0.7 . tcp . 80 }", "delete element backend-1 { 10.96.0.7 . tcp . 80 }",
			"delete element service-ips { 10.96.0.7 . tcp . 80 }",
			"add element service-ips { 10.96.0.7 . tcp . 80 : goto service-ns/web/tcp/http }",
			"add element service-nodeports { tcp . 30080 : goto external-ns/web/tcp/http }",
		}},
		{"none that is ready", func() {
			src.set(makeService("web", []string{"10.96.0.7"}), makeSlice("web", at("10.244.0.2", "here", unready)))
		}, []string{ // the first endpoint is shared: its hairpin stays
			"delete element service-ips { 10.96.0.7 . tcp . 80 }", "delete element service-nodeports { tcp . 30080 }",
			"add element no-endpoint-services { 10.96.0.7 . tcp . 80 : goto refuse }",
			"flush chain external-ns/web/tcp/http", "flush chain service-ns/web/tcp/http",
		}},
		{"deleted", func() { delete(src.services, web) }, []string{
			"delete element cluster-ips { 10.96.0.7 }", "delete element no-endpoint-services { 10.96.0.7 . tcp . 80 }",
		}},
	} {
		step.change()
		syncs(t, s, false, web)
		if d := cmp.Diff(step.want, last()); d != "" {
			t.Errorf("%s: transaction differs (-want +got):\n%s", step.name, d)
		}
	}
	if !s.unswept() {
		t.Error("no chain waits to be deleted")
	}
	if err := s.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"delete chain external-ns/web/tcp/http", "delete chain service-ns/web/tcp/http"}, last()); d != "" {
		t.Errorf("sweep differs (-want +got):\n%s", d)
	}
}

// TestTwoServicesOfOneAddress have the verdict of the first by name, whoever came first, and that of the other once it is gone.
func TestTwoServicesOfOneAddress(t *testing.T) {
	shared := func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"198.51.100.1"} }
	src := newStatic()
	b := src.set(makeService("b", []string{"10.96.0.2"}, shared), makeSlice("b", at("10.244.1.2", "there")))
	s, tables := fakeSyncer(t, src)
	syncs(t, s, true)
	to := func() string {
		t.Helper()
		e := tables[0].Table.Maps[serviceIPs].FindElement("198.51.100.1", "tcp", "80")
		if e == nil {
			return ""
		}
		_, name, _ := strings.Cut(e.Value[0], "-ns/")
		return name
	}
	if got := to(); got != "b/tcp/http" {
		t.Errorf("the address goes to %q", got)
	}
	a := src.set(makeService("a", []string{"10.96.0.1"}, shared), makeSlice("a", at("10.244.1.3", "there")))
	syncs(t, s, false, a)
	if got := to(); got != "a/tcp/http" {
		t.Errorf("the address goes to %q", got)
	}
	delete(src.services, a)
	syncs(t, s, false, a)
	if got := to(); got != "b/tcp/http" {
		t.Errorf("the address goes to %q", got)
	}
	delete(src.services, b)
	syncs(t, s, false, b)
	if got := to(); got != "" {
		t.Errorf("the address goes to %q", got)
	}
	if n := len(s.tables[0].claims); n != 0 {
		t.Errorf("%d elements are claimed by nobody", n)
	}
}

// TestChangesAndTheWholeAreTheSame makes random changes one by one, and compares with everything written at once.
func TestChangesAndTheWholeAreTheSame(t *testing.T) {
	src := newStatic()
	s, tables := fakeSyncer(t, src)
	syncs(t, s, true)
	randomChanges(t, src, s)
	if err := s.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	other, fresh := fakeSyncer(t, src)
	syncs(t, other, true)
	for i := range tables {
		if d := cmp.Diff(lines(fresh[i].Dump()), lines(tables[i].Dump())); d != "" {
			t.Errorf("what changes have led to differs from the whole (-whole +changes):\n%s", d)
		}
	}
	// And written once more over what is there, it stays the same.
	syncs(t, s, true)
	for i := range tables {
		if d := cmp.Diff(lines(fresh[i].Dump()), lines(tables[i].Dump())); d != "" {
			t.Errorf("what was written twice differs (-once +twice):\n%s", d)
		}
	}
}

// randomChanges changes a few Services, each change written by itself.
func randomChanges(t *testing.T, src *static, s *syncer) {
	t.Helper()
	kinds := []func(*corev1.Service){func(*corev1.Service) {}, nodePort, sticky, localInside,
		func(v *corev1.Service) { balanced("203.0.113.5")(v); localOutside(v) }}
	for i := range 200 {
		name := fmt.Sprint("svc", i*7%5)
		n := types.NamespacedName{Namespace: "ns", Name: name}
		switch i % 6 {
		case 5:
			delete(src.services, n)
		default:
			l := makeSlice(name)
			for k := range i % 7 { // more than a port has without chains of its own, too
				l.Endpoints = append(l.Endpoints, at(fmt.Sprint("10.244.0.", 2+(i+k)%6), []string{"here", "there"}[(i+k)%2]))
			}
			src.set(makeService(name, []string{fmt.Sprint("10.96.0.", i*7%5+1)}, kinds[i%len(kinds)]), l)
		}
		syncs(t, s, false, n)
	}
}

func lines(text string) []string {
	out := strings.Split(text, "\n")
	slices.Sort(out)
	return out
}

// BenchmarkTenThousand is 10,000 Services of two endpoints each, in the kernel: all of them, and a change of one.
func BenchmarkTenThousand(b *testing.B) {
	for name, in := range languages() {
		b.Run(name, func(b *testing.B) { benchTenThousand(b, in) })
	}
}

func benchTenThousand(b *testing.B, in language) {
	made := netlab.New(b)
	in.want(b, made.Node)
	src := newStatic()
	service := func(i, endpoint int) types.NamespacedName {
		name := fmt.Sprint("svc", i)
		return src.set(makeService(name, []string{fmt.Sprintf("10.96.%d.%d", i/250, i%250+1)}),
			makeSlice(name, at(fmt.Sprintf("10.244.%d.%d", i/250, i%250+1), "here"),
				at(fmt.Sprintf("10.245.%d.%d", endpoint/250, endpoint%250+1), "there")))
	}
	for i := range 10_000 {
		service(i, i)
	}
	o, err := Options{NodeName: "here", Bridged: true, Backend: in.Backend,
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/15")}}.withDefaults()
	if err != nil {
		b.Fatal(err)
	}
	var s *syncer
	made.Node.Do(func() (err error) { s, err = open(o, src, self{}); return err })
	run := func(all bool, names ...types.NamespacedName) {
		changed := maps.Collect(func(yield func(types.NamespacedName, bool) bool) {
			for _, n := range names {
				yield(n, true)
			}
		})
		made.Node.Do(func() error { return s.sync(b.Context(), changed, all) })
	}
	// On a machine that does other things too, the processor's time says more than the clock's.
	spent := func(b *testing.B, f func()) {
		before := processorTime(b)
		f()
		b.ReportMetric(float64((processorTime(b)-before).Milliseconds())/float64(b.N), "cpu-ms/op")
	}
	b.Run("all, first", func(b *testing.B) {
		spent(b, func() {
			for b.Loop() {
				b.StopTimer()
				made.Node.Do(func() error { return Remove(b.Context()) })
				b.StartTimer()
				run(true)
			}
		})
	})
	b.Run("all, again", func(b *testing.B) {
		spent(b, func() {
			for b.Loop() {
				run(true)
			}
		})
	})
	b.Run("one", func(b *testing.B) {
		i := 0
		spent(b, func() {
			for b.Loop() {
				i++
				run(false, service(5, i))
			}
		})
	})
}

// processorTime is that of this process and of those that it has started.
func processorTime(b *testing.B) time.Duration {
	sum := time.Duration(0)
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			b.Fatal(err)
		}
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum
}
