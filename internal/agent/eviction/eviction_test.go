// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/cri/fakecri"
	"github.com/mortise-dev/mortise/internal/agent/evict"
	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

// node is a node with pods that stay until they are killed.
type node struct {
	pods      []*corev1.Pod
	killed    []string
	killing   bool
	leaving   bool
	emptied   int
	pressures [][]corev1.NodeConditionType
}

func (n *node) ActivePods() []*corev1.Pod                   { return slices.Clone(n.pods) }
func (n *node) DeleteDeadContainers(context.Context) error  { n.emptied++; return nil }
func (n *node) DeleteUnused(context.Context) error          { n.emptied++; return nil }
func (n *node) ShuttingDown() bool                          { return n.leaving }
func (n *node) Killing(time.Duration) bool                  { return n.killing }
func (n *node) Killed() <-chan struct{}                     { return nil }
func (n *node) SetPressure(list []corev1.NodeConditionType) { n.pressures = append(n.pressures, list) }
func (n *node) KillPod(pod types.UID, end podspec.End) {
	n.killed = append(n.killed, string(pod)+" "+end.Reason)
	n.killing = true
}

// short is a manager of a node whose disk is full.
func short(t *testing.T, n *node) (*Manager, *evict.Manager) {
	t.Helper()
	r := fakecri.New(t.TempDir(), clock.RealClock{}.Now)
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	runtime, err := cri.Dial(t.Context(), r.Socket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { runtime.Close(context.WithoutCancel(t.Context())) })
	k := kubeletconfig.Default()
	k.EvictionHard = map[string]string{"nodefs.available": "10%"}
	thresholds, err := kubeletconfig.Evictions(k)
	if err != nil {
		t.Fatal(err)
	}
	m := New(Config{
		Pods: n, Containers: n, Killer: n, Images: n, Status: n, Shutdown: n,
		Meter: &Meter{Runtime: runtime, RootDir: t.TempDir(), Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler)},
		Measure: func(context.Context) evict.Observations {
			return evict.Observations{evict.NodeFSAvailable: {Available: 1, Capacity: 100}}
		},
		Kubelet: k, Thresholds: thresholds, Node: &corev1.ObjectReference{Kind: "Node", Name: "n1"}, Events: record.NewFakeRecorder(10),
		Evictions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "evictions"}, []string{"eviction_signal"}),
		Clock:     clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
	})
	return m, &evict.Manager{Thresholds: thresholds}
}

// Disk is freed before a pod goes, and one pod goes at a time.
func TestOnePodIsEvictedAtATime(t *testing.T) {
	n := &node{pods: []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{UID: "a"}}, {ObjectMeta: metav1.ObjectMeta{UID: "b"}}}}
	m, core := short(t, n)
	m.relieve(t.Context(), core)
	m.relieve(t.Context(), core)
	if len(n.killed) != 1 || n.emptied != 2 {
		t.Errorf("killed %v, emptied %d times", n.killed, n.emptied)
	}
	if len(n.pressures) == 0 || !slices.Equal(n.pressures[0], []corev1.NodeConditionType{corev1.NodeDiskPressure}) {
		t.Errorf("pressure %v", n.pressures)
	}
	if why := m.Refusal(&corev1.Pod{}); why != "The node had condition: [DiskPressure]. " {
		t.Errorf("refusal %q", why)
	}
	if why := m.Refusal(&corev1.Pod{Spec: corev1.PodSpec{Priority: new(int32(2_000_000_000))}}); why != "" {
		t.Errorf("a critical pod is refused: %q", why)
	}
}

// A node that shuts down evicts nobody.
func TestNobodyIsEvictedInAShutdown(t *testing.T) {
	n := &node{pods: []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{UID: "a"}}}, leaving: true}
	m, core := short(t, n)
	m.relieve(t.Context(), core)
	if len(n.killed) != 0 || len(n.pressures) != 1 {
		t.Errorf("killed %v, pressure %v", n.killed, n.pressures)
	}
}
