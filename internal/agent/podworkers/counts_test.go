// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podworkers

import (
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// The counts are kubelet's: by source, and by what becomes of the pod.
func TestCounts(t *testing.T) {
	table := newPodTable(clock.RealClock{}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	pod := func(name string, change func(w *worker)) {
		w := &worker{}
		w.spec = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
		w.status = &corev1.PodStatus{Phase: corev1.PodRunning}
		w.counted = true
		change(w)
		table.workers[types.UID(name)] = w
	}
	pod("runs", func(w *worker) { w.spec.Spec.EphemeralContainers = make([]corev1.EphemeralContainer, 2) })
	pod("static", func(w *worker) { w.spec.Annotations = map[string]string{"kubernetes.io/config.source": "file"} })
	pod("over", func(w *worker) { w.status.Phase, w.counted = corev1.PodSucceeded, false })
	pod("deleted", func(w *worker) { w.spec.DeletionTimestamp = &metav1.Time{} })
	pod("gone", func(w *worker) { w.gone = true })
	pod("stranger", func(w *worker) { w.spec = nil })
	pod("resized", func(w *worker) {
		w.spec.Spec.Priority = new(int32(-5))
		w.status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Reason: "Deferred"}, {Type: corev1.PodResizeInProgress}}
	})
	registry := prometheus.NewRegistry()
	registry.MustRegister(countsOf(table))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				key += " " + l.GetValue()
			}
			got[key] = m.GetGauge().GetValue()
		}
	}
	for key, want := range map[string]float64{
		"kubelet_active_pods ": 3, "kubelet_active_pods true": 1, "kubelet_desired_pods ": 4, "kubelet_desired_pods true": 1,
		"kubelet_managed_ephemeral_containers": 2, "kubelet_mirror_pods": 1, "kubelet_pod_in_progress_resizes": 1,
		"kubelet_pod_pending_resizes low deferred": 1, "kubelet_working_pods desired sync ": 2,
		"kubelet_working_pods runtime_only terminated unknown": 0,
	} {
		if n, has := got[key]; !has || n != want {
			t.Errorf("%s is %v (%t), want %v", key, n, has, want)
		}
	}
	working := map[string]float64{}
	for labels, n := range countsOf(table).count().working {
		working[strings.Join(labels[:], " ")] = n
	}
	for labels, n := range map[string]float64{
		"sync desired ": 2, "sync desired true": 1, "terminated desired ": 1, "terminating desired ": 1, "terminating orphan ": 1,
		"terminating runtime_only unknown": 1,
	} {
		if working[labels] != n {
			t.Errorf("%s: %v, want %v", labels, working[labels], n)
		}
	}
}
