// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/builtin"
	"github.com/mortise-dev/mortise/internal/scheduler"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

// gate holds bindings up until it is opened, and notes which pods were decided in which order.
type gate struct {
	opened chan struct{}
	queued chan string // pods as they come
	placed chan string // pods as they are decided

	mu    sync.Mutex
	order []string
}

func (*gate) Name() string { return "Gate" }

func (g *gate) PreEnqueue(_ context.Context, pod *corev1.Pod) *fwk.Status {
	g.queued <- pod.Name
	return nil
}

func (g *gate) Reserve(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) *fwk.Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.order = append(g.order, pod.Name)
	g.placed <- pod.Name
	return nil
}

func (*gate) Unreserve(context.Context, fwk.CycleState, *corev1.Pod, string) {}

func (g *gate) Bind(ctx context.Context, _ fwk.CycleState, _ *corev1.Pod, _ string) *fwk.Status {
	select {
	case <-g.opened:
		return fwk.NewStatus(fwk.Skip) // the usual binder does it
	case <-ctx.Done():
		return fwk.AsStatus(ctx.Err())
	}
}

// TestDecisionsWaitForBindings: while bindings are slow, only so many pods are decided ahead of them, so that a pod that
// comes meanwhile and is more important is decided next.
func TestDecisionsWaitForBindings(t *testing.T) {
	s, c := cluster(t)
	ctx, cancel := context.WithCancel(t.Context())
	const pods, ahead = 20, 4
	ended, g := make(chan error, 1), &gate{opened: make(chan struct{}), queued: make(chan string, 2*pods), placed: make(chan string, 2*pods)}
	go func() {
		ended <- scheduler.Run(ctx, scheduler.Options{
			Config: s.Config(), Name: "gated", Bindings: ahead / 4,
			Plugins: append(profile.Registry{{Name: "Gate",
				New: func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return g, nil }}}, builtin.SchedulerPlugins()...),
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	next := func(from chan string) string {
		t.Helper()
		select {
		case name := <-from:
			return name
		case <-time.After(30 * time.Second):
			t.Fatal("nothing came within 30 s")
			return ""
		}
	}
	if _, err := c.SchedulingV1().PriorityClasses().Create(t.Context(),
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "urgent"}, Value: 1000}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	addNode(t, c, "a", "100")
	gated := func(s *corev1.PodSpec) { s.SchedulerName = "gated" }
	for i := range pods {
		addPod(t, c, fmt.Sprint("p", i), "1", gated)
	}
	for range ahead {
		next(g.placed)
	}
	addPod(t, c, "urgent", "1", func(s *corev1.PodSpec) { s.SchedulerName, s.PriorityClassName = "gated", "urgent" })
	for next(g.queued) != "urgent" {
	}
	close(g.opened)
	awaitPod(t, c, "urgent", on("a"))
	for i := range pods {
		awaitPod(t, c, fmt.Sprint("p", i), on("a"))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if at := slices.Index(g.order, "urgent"); at != ahead {
		t.Errorf("decided in the order %v: the urgent pod came at %d, want %d", g.order, at, ahead)
	}
}
