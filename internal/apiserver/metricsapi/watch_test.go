// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"context"
	"errors"
	"math"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// loaded are nodes of one pod each, ns/NODE, whose container uses what is set.
type loaded struct {
	mu       sync.Mutex
	cores    map[string]float64
	used     map[string]float64 // core seconds
	at       map[string]time.Time
	slow     time.Duration
	fail     bool
	measured atomic.Int32
}

func (l *loaded) set(node string, cores float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cores == nil {
		l.cores, l.used, l.at = map[string]float64{}, map[string]float64{}, map[string]time.Time{}
	}
	l.count(node)
	l.cores[node] = cores
}

func (l *loaded) count(node string) {
	now := time.Now()
	if at, known := l.at[node]; known {
		l.used[node] += l.cores[node] * now.Sub(at).Seconds()
	} else {
		l.used[node] = 1000
	}
	l.at[node] = now
}

func (l *loaded) Measure(_ context.Context, of *corev1.Node) (*Sample, error) {
	l.measured.Add(1)
	time.Sleep(l.slow)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail {
		return nil, errors.New("out of order")
	}
	l.count(of.Name)
	p := Point{Time: time.Now(), CPU: uint64(l.used[of.Name] * 1e9), Memory: 1 << 20}
	return &Sample{Node: p, Containers: []Container{{"ns", of.Name, "a", p}}}, nil
}

// doubled is a watch that is woken when pods use more than 10 % more processor time.
func doubled(wake func(), nodes ...string) *Watch {
	w := &Watch{Wake: wake, Bounds: []Bound{
		{Resource: corev1.ResourceCPU, High: 1.1}, {Resource: corev1.ResourceMemory, Low: 0.5, High: math.Inf(1)},
	}}
	for _, n := range nodes {
		w.Pods = append(w.Pods, Pod{Namespace: "ns", Name: n, Node: n})
	}
	return w
}

// TestWatch tells of a step of the load once, and within a tenth of the window, in which it shows, and the time between measurements that
// hurry, however long the node was measured before.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &loaded{}
		s := New(Options{Local: l})
		defer s.Close()
		one, two := nodeNamed("one", corev1.ConditionTrue), nodeNamed("two", corev1.ConditionTrue)
		l.set("one", 0.5)
		l.set("two", 0.5)
		for i := range 40 {
			_, _ = ask(t, s, one, two)
			woken := make(chan time.Time, 2)
			s.Watch(types.NamespacedName{Name: "web"}, doubled(func() { woken <- time.Now() }, "one", "two"))
			time.Sleep(time.Duration(i) * 730 * time.Millisecond)
			synctest.Wait()
			if len(woken) > 0 {
				t.Fatalf("%d: woken without a change", i)
			}
			l.set("one", 1)
			l.set("two", 1)
			stepped := time.Now()
			if took := (<-woken).Sub(stepped); took > time.Second+2*hurry {
				t.Errorf("%d: woken after %s", i, took)
			}
			l.set("one", 0.5)
			l.set("two", 0.5)
			time.Sleep(20 * time.Second)
			if len(woken) > 0 {
				t.Errorf("%d: woken twice", i)
			}
			if said, _ := ask(t, s, one); !regexp.MustCompile(`^one 500m/1Mi over [6-9]s;$`).MatchString(said) {
				t.Errorf("%d: the window: %s", i, said)
			}
		}
		if n := len(s.nodes["one"].earlier); n > 4 {
			t.Errorf("%d measurements are kept", n)
		}
	})
}

// TestWatchedNodes follows when nodes are measured for watches: while somebody asks, not too often where it takes long, and rarely where it
// fails.
func TestWatchedNodes(t *testing.T) {
	for name, c := range map[string]struct {
		slow     time.Duration
		fail     bool
		from, to int32 // measurements in a minute
	}{
		"quick": {0, false, 55, 60}, "slow": {100 * time.Millisecond, false, 10, 13}, "failing": {0, true, 5, 7},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := &loaded{slow: c.slow}
			s := New(Options{Local: l})
			defer s.Close()
			key := types.NamespacedName{Name: "web"}
			one := nodeNamed("one", corev1.ConditionTrue)
			l.set("one", 0.5)
			_, _ = ask(t, s, one)
			s.Watch(key, doubled(func() {}, "one", "unknown"))
			l.mu.Lock()
			l.fail = c.fail
			l.mu.Unlock()
			before := l.measured.Load()
			time.Sleep(time.Minute)
			if n := l.measured.Load() - before; n < c.from || n > c.to {
				t.Errorf("%s: %d measurements in a minute", name, n)
			}
			time.Sleep(keeps)
			before = l.measured.Load()
			time.Sleep(time.Hour)
			if nodes, watched, _ := s.count(); l.measured.Load() > before || nodes > 0 || watched != 0 {
				t.Errorf("%s: %d measurements while nobody asks, %d nodes, %d watched", name, l.measured.Load()-before, nodes, watched)
			}
			_, _ = ask(t, s, one)
			s.Watch(key, doubled(func() {}, "one"))
			if _, watched, _ := s.count(); watched != 1 {
				t.Errorf("%s: %d nodes are watched", name, watched)
			}
			s.Watch(key, nil)
			before = l.measured.Load()
			time.Sleep(time.Minute)
			if _, watched, watches := s.count(); l.measured.Load() > before || watched != 0 || watches > 0 {
				t.Errorf("%s: %d measurements without a watch, %d nodes watched", name, l.measured.Load()-before, watched)
			}
		})
	}
}

// TestHurriesSeldom: usage that is always about to leave a bound, and never does, is measured more often only for a part of the time.
func TestHurriesSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &loaded{}
		s := New(Options{Local: l})
		defer s.Close()
		one := nodeNamed("one", corev1.ConditionTrue)
		l.set("one", 0.5)
		_, _ = ask(t, s, one)
		w := doubled(func() { t.Error("woken") }, "one")
		w.Bounds[0].High = 2
		s.Watch(types.NamespacedName{Name: "web"}, w)
		before := l.measured.Load()
		for range 20 { // of each three seconds a tenth is busy
			l.set("one", 3)
			time.Sleep(300 * time.Millisecond)
			l.set("one", 0.4)
			time.Sleep(2700 * time.Millisecond)
		}
		if n := l.measured.Load() - before; n <= 60 || n > 60+6*int32(haste/hurry) {
			t.Errorf("%d measurements in a minute", n)
		}
	})
}

// count returns the number of nodes that are known, of those that are watched, and of watches.
func (s *Server) count() (nodes, watched, watches int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.nodes), s.watched, len(s.watches)
}
