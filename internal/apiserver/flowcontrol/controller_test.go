// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package flowcontrol

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/internal/apiserver/flowcontrol/fair"
	"github.com/mortise-dev/mortise/internal/apiserver/requestinfo"
	"github.com/mortise-dev/mortise/resource"
)

// whole returns a controller with the objects that every cluster has.
func whole(seats int) *Controller {
	c := New(Options{Seats: seats})
	for _, l := range bootstrap.SuggestedPriorityLevelConfigurations {
		apply(c, priorityLevels, l.Name, l)
	}
	for _, s := range bootstrap.SuggestedFlowSchemas {
		apply(c, flowSchemas, s.Name, s)
	}
	return c
}

// apply makes a controller apply the change of an object; nil: it was deleted.
func apply(c *Controller, r schema.GroupResource, name string, obj resource.Object) {
	_ = c.Apply(context.Background(), &feed.Change{Resource: r, Name: name, Object: obj})
}

func asked(method, path string) *requestinfo.Info {
	return requestinfo.Parse(httptest.NewRequest(method, path, nil))
}

func TestMatch(t *testing.T) {
	c := whole(600)
	node := []string{"system:nodes", "system:authenticated"}
	accounts := []string{"system:serviceaccounts", "system:authenticated"}
	for _, x := range []struct {
		who          string
		groups       []string
		method, path string
		want         string
	}{
		{"root", []string{"system:masters", "system:authenticated"}, "GET", "/api/v1/pods", "exempt exempt"},
		{"system:anonymous", []string{"system:unauthenticated"}, "GET", "/healthz", "probes exempt"},
		{"system:anonymous", []string{"system:unauthenticated"}, "GET", "/version", "global-default global-default"},
		{"jane", []string{"system:authenticated"}, "GET", "/api/v1/pods", "global-default global-default"},
		{"system:node:n", node, "PATCH", "/api/v1/nodes/n/status", "system-node-high node-high"},
		{"system:node:n", node, "PUT", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n", "system-node-high node-high"},
		{"system:node:n", node, "GET", "/api/v1/namespaces/a/pods/b", "system-nodes system"},
		{"system:kube-scheduler", []string{"system:authenticated"}, "GET", "/api/v1/pods", "kube-scheduler workload-high"},
		{"system:kube-controller-manager", []string{"system:authenticated"}, "PUT",
			"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/l", "system-leader-election leader-election"},
		{"system:serviceaccount:kube-system:x", accounts, "GET", "/api/v1/pods", "kube-system-service-accounts workload-high"},
		{"system:serviceaccount:a:x", accounts, "GET", "/api/v1/pods", "service-accounts workload-low"},
		{"nobody", nil, "GET", "/api/v1/pods", "catch-all catch-all"},
	} {
		s := c.Match(asked(x.method, x.path), &user.DefaultInfo{Name: x.who, Groups: x.groups})
		if got := s.Name + " " + s.Level; got != x.want {
			t.Errorf("%s %s as %s: %s, want %s", x.method, x.path, x.who, got, x.want)
		}
	}
}

// TestSeats compares the seats with those that kube-apiserver 1.37.1 reports for its defaults, and for a tenth of its
// seats.
func TestSeats(t *testing.T) {
	for seats, want := range map[int]string{
		600: "catch-all 13/13/613 exempt 0/0/600 global-default 49/24/649 leader-election 25/25/625 node-high 98/73/698 system 74/50/674 workload-high 98/49/698 workload-low 245/24/845",
		60:  "catch-all 2/2/62 exempt 0/0/60 global-default 5/2/65 leader-election 3/3/63 node-high 10/7/70 system 8/5/68 workload-high 10/5/70 workload-low 25/2/85",
	} {
		c := whole(seats)
		var got []string
		c.each(func(l *level) { got = append(got, fmt.Sprintf("%s %d/%d/%d", l.name, l.nominal, l.least, l.most)) })
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%d seats:\n got %s\nwant %s", seats, s, want)
		}
	}
}

// TestAllocate checks that shares are within their bounds, add up, and are proportional where no bound prevents it.
func TestAllocate(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 20_000 {
		claims := make([]claim, 1+rnd.IntN(6))
		low, high := 0.0, 0.0
		for i := range claims {
			c := &claims[i]
			c.low = float64(rnd.IntN(20))
			c.target = c.low + float64(rnd.IntN(30))*rnd.Float64()
			c.high = c.low + float64(rnd.IntN(40))
			low, high = low+c.low, high+c.high
		}
		sum := math.Round(low - 3 + rnd.Float64()*(high-low+6))
		shares, p, ok := allocate(sum, claims)
		if want := sum >= low && sum <= high && sum >= 0; ok != want {
			t.Fatalf("%v of %v: found %v", sum, claims, ok)
		}
		if !ok {
			continue
		}
		total := 0.0
		for i, s := range shares {
			c := claims[i]
			total += s
			free := s > c.low+1e-6 && s < c.high-1e-6
			if s < c.low-1e-6 || s > c.high+1e-6 || free && math.Abs(s-p*c.target) > 1e-6 {
				t.Fatalf("%v of %v at %v: %v", sum, claims, p, shares)
			}
		}
		if math.Abs(total-sum) > 1e-3 {
			t.Fatalf("%v of %v: %v add up to %v", sum, claims, shares, total)
		}
	}
}

func quiet(name string) *user.DefaultInfo {
	return &user.DefaultInfo{Name: name, Groups: []string{"system:authenticated"}}
}

// TestBorrowing checks that a level borrows unused seats of another, and that they return when they are needed.
func TestBorrowing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := whole(60)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go c.Run(ctx)
		info, jane := asked("GET", "/api/v1/pods"), quiet("jane")
		s := c.Match(info, jane)
		var in atomic.Int64
		release := make(chan struct{})
		for range 50 {
			go func() {
				ticket, ok := c.Enter(ctx, time.Now(), s, fair.Work{Initial: 1}, info, jane, nil)
				if !ok {
					return
				}
				in.Add(1)
				<-release
				ticket.Leave()
			}()
		}
		synctest.Wait()
		nominal := int64(s.level.nominal)
		before := in.Load()
		time.Sleep(2 * adjustment) // of the fake clock: two adjustments
		synctest.Wait()
		after := in.Load()
		if before > nominal*3 || after <= before {
			t.Errorf("%d requests ran on %d nominal seats, %d after they were lent more", before, nominal, after)
		}
		close(release)
		synctest.Wait()
		c.each(func(l *level) {
			if !l.set.Idle() || l.set.Counts().Held != 0 {
				t.Errorf("left over in %s: %+v", l.name, l.set.Counts())
			}
		})
	})
}

// TestWaiting checks that a request that waits too long, or whose client leaves, is rejected, and that a full queue
// rejects requests immediately with a Retry-After.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := whole(10)
		apply(c, priorityLevels, "one", level1("one", &flowcontrolv1.QueuingConfiguration{Queues: 1, HandSize: 1, QueueLengthLimit: 2}))
		apply(c, flowSchemas, "one", schemaFor("one", "one", 1))
		info, jane := asked("GET", "/api/v1/pods"), quiet("jane")
		s := c.Match(info, jane)
		if s.Name != "one" {
			t.Fatalf("matched %s: a commit takes effect at once", s.Name)
		}
		enter := func(ctx context.Context) (*Ticket, bool) {
			return c.Enter(ctx, time.Now(), s, fair.Work{Initial: 1}, info, jane, nil)
		}
		var held []*Ticket
		for range s.level.current {
			ticket, ok := enter(t.Context())
			if !ok {
				t.Fatal("no seat")
			}
			held = append(held, ticket)
		}
		began := time.Now()
		if _, ok := enter(t.Context()); ok || time.Since(began) != 15*time.Second {
			t.Errorf("waited %v, let in %v", time.Since(began), ok)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		began = time.Now()
		if _, ok := enter(ctx); ok || time.Since(began) != 2*time.Second {
			t.Errorf("with a deadline: waited %v, let in %v", time.Since(began), ok)
		}
		gone, leave := context.WithCancel(t.Context())
		var g sync.WaitGroup
		for range 2 {
			g.Go(func() {
				if _, ok := enter(gone); ok {
					t.Error("who went away was let in")
				}
			})
		}
		synctest.Wait()
		if _, ok := enter(t.Context()); ok || c.RetryAfter(s) != 1 {
			t.Errorf("a full queue let in %v, retry after %d", ok, c.RetryAfter(s))
		}
		leave()
		g.Wait()
		for _, x := range held {
			x.Leave()
		}
		if f := s.flow; f.Queued != 0 || f.Running != 0 || f.Late != 4 || f.Full != 1 {
			t.Errorf("%+v", f)
		}
	})
}

func level1(name string, q *flowcontrolv1.QueuingConfiguration) *flowcontrolv1.PriorityLevelConfiguration {
	shares, none := int32(30), int32(0)
	l := &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "level", Generation: 1}}
	l.Spec.Type = flowcontrolv1.PriorityLevelEnablementLimited
	l.Spec.Limited = &flowcontrolv1.LimitedPriorityLevelConfiguration{NominalConcurrencyShares: &shares, BorrowingLimitPercent: &none,
		LendablePercent: &none}
	l.Spec.Limited.LimitResponse = flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject}
	if q != nil {
		l.Spec.Limited.LimitResponse = flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeQueue, Queuing: q}
	}
	return l
}

func schemaFor(name, level string, precedence int32) *flowcontrolv1.FlowSchema {
	s := bootstrap.MandatoryFlowSchemaCatchAll.DeepCopy()
	s.Name, s.UID, s.Generation = name, "schema", 1
	s.Spec.MatchingPrecedence, s.Spec.PriorityLevelConfiguration.Name = precedence, level
	return s
}

// TestGoing checks that a deleted level stays until its last request has left, while its schemas match nothing
// immediately.
func TestGoing(t *testing.T) {
	c := whole(10)
	apply(c, priorityLevels, "one", level1("one", nil))
	apply(c, flowSchemas, "one", schemaFor("one", "one", 1))
	info, jane := asked("GET", "/api/v1/pods"), quiet("jane")
	ticket, ok := c.Enter(t.Context(), time.Now(), c.Match(info, jane), fair.Work{Initial: 1}, info, jane, nil)
	if !ok {
		t.Fatal("no seat")
	}
	apply(c, priorityLevels, "one", nil)
	if s := c.Match(info, jane); s.Name != "global-default" {
		t.Errorf("matched %s", s.Name)
	}
	if l := c.levels["one"]; l == nil || !l.going.Load() {
		t.Error("the level went with somebody in it")
	}
	ticket.Leave()
	if c.levels["one"] != nil {
		t.Error("the level did not go when it was idle")
	}
	apply(c, flowSchemas, "one", nil)
	for _, name := range []string{"exempt", "catch-all"} { // these are mandatory, even if they are not stored
		if c.levels[name] == nil {
			t.Errorf("no level %s", name)
		}
	}
}

func TestEstimate(t *testing.T) {
	c := New(Options{Seats: 600, Stored: func(r schema.GroupResource) (int64, int64, bool) {
		switch r.Resource {
		case "pods":
			return 5000, 2000, true
		case "few":
			return 3, 2000, true
		case "none":
			return 0, 0, true
		}
		return 0, 0, false
	}})
	s := &Schema{maxSeats: 37, level: &level{}, flow: fair.NewFlow("f")}
	for path, want := range map[string]int{
		"/api/v1/pods":                                                  10, // at most a megabyte is in memory
		"/api/v1/pods?limit=100":                                        2,
		"/api/v1/pods?limit=500&continue=x":                             10,
		"/api/v1/pods?continue=x":                                       37, // all objects, up to the maximum of the level
		"/api/v1/pods?resourceVersion=5&limit=50":                       1,
		"/api/v1/pods?resourceVersion=5&limit=50&labelSelector=a":       37,
		"/api/v1/pods?resourceVersion=5&resourceVersionMatch=Exact":     37,
		"/api/v1/pods?fieldSelector=metadata.name%3Da":                  1,
		"/api/v1/pods?watch=1":                                          10,
		"/api/v1/pods?watch=1&resourceVersion=0":                        10,
		"/api/v1/pods?watch=1&resourceVersion=5":                        1,
		"/api/v1/pods?watch=1&resourceVersion=5&sendInitialEvents=true": 10,
		"/api/v1/pods?limit=x":                                          37, // rejected later
		"/api/v1/few":                                                   1,
		"/api/v1/none":                                                  1,
		"/api/v1/unheard":                                               1,
	} {
		r := httptest.NewRequest("GET", path, nil)
		if got := c.Estimate(r, requestinfo.Parse(r), s); got != (fair.Work{Initial: want}) {
			t.Errorf("%s: %+v, want %d seats", path, got, want)
		}
	}
	var forget []func()
	watch := func(n int, path string) {
		for range n {
			r := httptest.NewRequest("GET", path, nil)
			forget = append(forget, c.Watching(r, requestinfo.Parse(r)))
		}
	}
	watch(9, "/api/v1/pods?watch=1")
	watch(50, "/api/v1/namespaces/b/pods?watch=1")
	watch(50, "/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dn")
	write := func(path string) fair.Work {
		r := httptest.NewRequest("POST", path, nil)
		return c.Estimate(r, requestinfo.Parse(r), s)
	}
	for path, want := range map[string]fair.Work{
		"/api/v1/namespaces/a/pods": {Initial: 1}, // nine watchers cost nothing
		"/api/v1/namespaces/b/pods": {Initial: 1, Final: 6, Linger: 5 * time.Millisecond},
	} {
		if got := write(path); got != want {
			t.Errorf("a write to %s: %+v, want %+v", path, got, want)
		}
	}
	watch(400, "/api/v1/namespaces/b/pods?watch=1")
	if got, want := write("/api/v1/namespaces/b/pods"), (fair.Work{Initial: 1, Final: 10, Linger: 23 * time.Millisecond}); got != want {
		t.Errorf("beside 459 watchers: %+v, want %+v", got, want)
	}
	for _, f := range forget {
		f()
	}
	if len(c.watches.counts) != 0 || c.watches.n.Load() != 0 {
		t.Errorf("left over: %v", c.watches.counts)
	}
}

// TestDropped checks that Retry-After grows with rejections, up to half a minute, and shrinks again.
func TestDropped(t *testing.T) {
	var d dropped
	second, seen := int64(1000), []int64{}
	for range 200 {
		for range 200 {
			d.note(second)
		}
		if after := max(d.after.Load(), 1); len(seen) == 0 || seen[len(seen)-1] != after {
			seen = append(seen, after)
		}
		second++
	}
	if got := fmt.Sprint(seen); got != "[1 2 4 8 16 32]" {
		t.Errorf("went up by %s", got)
	}
	for range 40 {
		second += 60
		d.note(second)
	}
	if after := d.after.Load(); after != 1 {
		t.Errorf("came down to %d", after)
	}
}

// TestMetrics compares the metrics with upstream's, where the numbers are predictable.
func TestMetrics(t *testing.T) {
	c := whole(600)
	info, jane := asked("GET", "/api/v1/pods"), quiet("jane")
	ticket, _ := c.Enter(t.Context(), time.Now(), c.Match(info, jane), fair.Work{Initial: 2}, info, jane, nil)
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(c)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			labels := ""
			for _, l := range m.Label {
				labels += " " + l.GetName() + "=" + l.GetValue()
			}
			got[f.GetName()+labels] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	const of = " flow_schema=global-default priority_level=global-default"
	for name, want := range map[string]float64{
		"apiserver_flowcontrol_current_executing_seats" + of:                                         2,
		"apiserver_flowcontrol_dispatched_requests_total" + of:                                       1,
		"apiserver_flowcontrol_nominal_limit_seats priority_level=workload-low":                      245,
		"apiserver_flowcontrol_upper_limit_seats priority_level=leader-election":                     625,
		"apiserver_flowcontrol_read_vs_write_current_requests phase=executing request_kind=mutating": 0,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s: %v, want %v", name, v, want)
		}
	}
	ticket.Leave()
}

func BenchmarkUncontended(b *testing.B) {
	c := whole(600)
	info, jane := asked("GET", "/api/v1/namespaces/a/pods/b"), quiet("jane")
	r := httptest.NewRequest("GET", "/api/v1/namespaces/a/pods/b", nil)
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		s := c.Match(info, jane)
		t, _ := c.Enter(b.Context(), now, s, c.Estimate(r, info, s), info, jane, nil)
		t.Leave()
	}
}
