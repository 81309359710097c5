// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The metrics that kubelet's dashboards read count the start of a pod.
func TestMetricsOfDashboards(t *testing.T) {
	c, r := newConfigured(t, "", func(o *Options) { o.Metrics = NewMetrics() })
	r.OnExec(func([]string) (string, int32) { return "", 0 })
	pod := onePod("p")
	pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}, PeriodSeconds: 1,
	}
	c.create(pod)
	c.await("p", "ready", isReady)
	families := map[string]float64{}
	read := func(from prometheus.Gatherer) {
		list, err := from.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range list {
			for _, m := range f.Metric {
				families[f.GetName()] += m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount()) + m.GetGauge().GetValue()
			}
		}
	}
	read(c.options.Metrics.Probes())
	read(c.options.Metrics.Gatherer()) // of what runs
	// The round that wrote the status of the pod has ended when the pod is gone.
	if err := c.client.CoreV1().Pods("default").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await("p", "gone", func(p *corev1.Pod) bool { return p == nil })
	read(c.options.Metrics.Gatherer())
	for _, name := range []string{
		"kubelet_runtime_operations_total", "kubelet_runtime_operations_duration_seconds", "kubelet_pleg_relist_duration_seconds",
		"kubelet_pleg_last_seen_seconds", "kubelet_pod_start_duration_seconds", "kubelet_pod_start_sli_duration_seconds",
		"kubelet_pod_start_total_duration_seconds", "kubelet_pod_worker_duration_seconds", "kubelet_started_pods_total",
		"kubelet_started_containers_total", "kubelet_running_pods", "kubelet_running_containers", "prober_probe_total",
		"prober_probe_duration_seconds",
	} {
		if families[name] == 0 {
			t.Errorf("%s is not counted", name)
		}
	}
}
