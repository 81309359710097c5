// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/resource"
)

// nodesOf are nodes whose processors are half used.
type nodesOf struct {
	measured atomic.Int32
	hang     map[string]bool
	fail     atomic.Bool
}

func (n *nodesOf) Measure(ctx context.Context, of *corev1.Node) (*Sample, error) {
	n.measured.Add(1)
	if n.hang[of.Name] {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if n.fail.Load() {
		return nil, errors.New("out of order")
	}
	now := time.Now()
	p := Point{Time: now, CPU: uint64(now.UnixNano()) / 2, Memory: 5}
	return &Sample{Node: p, Containers: []Container{{"ns", "web", "a", p}}}, nil
}

func nodeNamed(name string, ready corev1.ConditionStatus) resource.Object {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}},
	}}
}

// ask asks what nodes use, and returns the answer as text, and how long it took.
func ask(t *testing.T, s *Server, nodes ...resource.Object) (said string, took time.Duration) {
	t.Helper()
	begun := time.Now()
	objs, err := s.nodeMetrics(t.Context(), nil, nodes)
	if err != nil {
		t.Error(err)
	}
	for _, obj := range objs {
		m := obj.(*metricsv1beta1.NodeMetrics)
		said += fmt.Sprintf("%s %s/%s over %s;", m.Name, m.Usage.Cpu(), m.Usage.Memory(), m.Window.Duration)
	}
	return said, time.Since(begun)
}

// TestQuestions follows when nodes are measured: not without questions, twice at the first one, and then once in a while.
func TestQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local := &nodesOf{}
		s := New(Options{Local: local})
		defer s.Close()
		for _, step := range []struct {
			pause    time.Duration
			want     string
			took     time.Duration
			measured int32
		}{
			{time.Hour, "one 500m/5 over 1s;", firstWindow, 2},
			{0, "one 500m/5 over 1s;", 0, 2},
			{9 * time.Second, "one 500m/5 over 9s;", 0, 3}, // ten seconds since the first measurement
			{15 * time.Second, "one 500m/5 over 15s;", 0, 4},
			{longestWindow + time.Second, "one 500m/5 over 1s;", firstWindow, 6},
			{time.Hour, "one 500m/5 over 1s;", firstWindow, 8},
		} {
			time.Sleep(step.pause)
			if said, took := ask(t, s, nodeNamed("one", corev1.ConditionTrue)); said != step.want || took != step.took ||
				local.measured.Load() != step.measured {
				t.Errorf("after %s: %q in %s by %d measurements, want %+v", step.pause, said, took, local.measured.Load(), step)
			}
		}
		time.Sleep(3 * keeps)
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.nodes) != 0 || s.sweep != nil {
			t.Errorf("%d nodes are kept without questions", len(s.nodes))
		}
	})
}

// TestManyAskAtOnce shares one measurement.
func TestManyAskAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local := &nodesOf{}
		s := New(Options{Local: local})
		defer s.Close()
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if said, _ := ask(t, s, nodeNamed("one", corev1.ConditionTrue)); said == "" {
					t.Error("no answer")
				}
			})
		}
		all.Wait()
		if n := local.measured.Load(); n != 2 {
			t.Errorf("%d measurements", n)
		}
	})
}

// TestBadNodes answers for the others, without a guess for those that hang or fail, and waits neither for nodes that are not ready nor
// twice for one that hangs.
func TestBadNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local := &nodesOf{hang: map[string]bool{"bad": true}}
		ledger := extension.NewLedger(clock.RealClock{})
		s := New(Options{Local: local, Ledger: ledger})
		defer s.Close()
		good, bad := nodeNamed("good", corev1.ConditionTrue), nodeNamed("bad", corev1.ConditionTrue)
		gone := nodeNamed("bad", corev1.ConditionUnknown)
		if said, took := ask(t, s, good, bad); said != "good 500m/5 over 1s;" || took != patience {
			t.Errorf("%q in %s", said, took)
		}
		if said, took := ask(t, s, good, bad); said != "good 500m/5 over 1s;" || took != 0 {
			t.Errorf("again: %q in %s", said, took)
		}
		time.Sleep(time.Minute)
		if said, took := ask(t, s, gone); said != "" || took != 0 {
			t.Errorf("not ready: %q in %s", said, took)
		}
		local.fail.Store(true)
		if said, took := ask(t, s, good); said != "" || took != 0 {
			t.Errorf("a failure: %q in %s", said, took)
		}
		local.fail.Store(false)
		time.Sleep(resolution)
		if said, took := ask(t, s, good); said != "good 500m/5 over 1s;" || took != firstWindow {
			t.Errorf("after the failure: %q in %s", said, took)
		}
		if all := ledger.Snapshot(); len(all) != 1 || all[0].Ref != builtIn || all[0].Calls < 6 || all[0].Failures == 0 ||
			all[0].Longest != limit {
			t.Errorf("the ledger has %+v", all)
		}
	})
}

// TestWarnings warns of a node that keeps failing, once, and not of one that is only just starting.
func TestWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		local := &nodesOf{}
		s := New(Options{Local: local, Log: slog.New(slog.NewTextHandler(&log, nil))})
		defer s.Close()
		one := nodeNamed("one", corev1.ConditionTrue)
		for i, fails := range []bool{true, false, true, true, true, false, true, true} {
			local.fail.Store(fails)
			_, _ = ask(t, s, one)
			time.Sleep(resolution)
			want := []int{0, 0, 0, 1, 1, 1, 1, 2}[i]
			if n := strings.Count(log.String(), `level=WARN msg="Could not read what a node uses" node=one error="out of order"`); n != want {
				t.Errorf("after question %d: %d warnings, want %d", i, n, want)
			}
		}
	})
}

// TestClose ends measurements.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{Local: &nodesOf{hang: map[string]bool{"bad": true}}})
		s.measure(t.Context(), nil, []*corev1.Node{nodeNamed("bad", corev1.ConditionFalse).(*corev1.Node)})
		begun := time.Now()
		s.Close()
		if took := time.Since(begun); took != 0 {
			t.Errorf("it takes %s", took)
		}
		if said, _ := ask(t, s, nodeNamed("one", corev1.ConditionTrue)); said != "" {
			t.Errorf("it answers %s", said)
		}
	})
}
