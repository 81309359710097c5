// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"context"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/builtin"
	"github.com/mortise-dev/mortise/internal/scheduler"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

// late refuses a pod once, when it is about to be bound, and until a claim is there before that.
type late struct {
	refused atomic.Int32
	handle  fwk.Handle
}

func (*late) Name() string { return "Late" }

func (l *late) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{{Event: fwk.ClusterEvent{Resource: fwk.PersistentVolumeClaim, ActionType: fwk.Add}}}, nil
}

func (l *late) PreFilter(ctx context.Context, _ fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	if _, err := l.handle.SharedInformerFactory().Core().V1().PersistentVolumeClaims().Lister().PersistentVolumeClaims(pod.Namespace).Get(
		"key"); err != nil {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "there is no key")
	}
	return nil, nil
}
func (*late) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

func (*late) PreBindPreFlight(context.Context, fwk.CycleState, *corev1.Pod, string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	return nil, nil
}

func (l *late) PreBind(context.Context, fwk.CycleState, *corev1.Pod, string) *fwk.Status {
	if l.refused.Add(1) == 1 {
		return fwk.NewStatus(fwk.Unschedulable, "not yet")
	}
	return nil
}

// TestWhatPluginsRegisterForAndRefuseLate: a plug-in's pods are tried again when an object comes that it has registered for,
// and a refusal just before binding is tried again by itself: no event could tell that it may help.
func TestWhatPluginsRegisterForAndRefuseLate(t *testing.T) {
	s, c := cluster(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended, l := make(chan error, 1), &late{}
	go func() {
		ended <- scheduler.Run(ctx, scheduler.Options{
			Config: s.Config(), Name: "late",
			Plugins: append(builtin.SchedulerPlugins(), profile.Registration{Name: "Late",
				New: func(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
					l.handle = h
					h.SharedInformerFactory().Core().V1().PersistentVolumeClaims().Informer()
					return l, nil
				}}),
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	addNode(t, c, "a", "4")
	addPod(t, c, "p", "1", func(s *corev1.PodSpec) { s.SchedulerName = "late" })
	awaitPod(t, c, "p", refused("0/1 nodes are available: there is no key."))
	if _, err := c.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), claim("key"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitPod(t, c, "p", on("a"))
	if n := l.refused.Load(); n != 2 {
		t.Errorf("PreBind ran %d times, want 2", n)
	}
}

func claim(name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse("1Gi")}},
	}}
}
