// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package profile_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/metrics"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

// observed are the histograms that have seen something, with how often.
func observed(t *testing.T, r *prometheus.Registry) (out []string) {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if h := m.GetHistogram(); h.GetSampleCount() > 0 {
				text := f.GetName()
				for _, l := range m.GetLabel() {
					text += " " + l.GetValue()
				}
				out = append(out, fmt.Sprint(text, " ", h.GetSampleCount()))
			}
		}
	}
	slices.Sort(out)
	return out
}

// counted are the counters of evaluations.
func counted(t *testing.T, r *prometheus.Registry) (out []string) {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "scheduler_plugin_evaluation_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			text := f.GetName()
			for _, l := range m.GetLabel() {
				text += " " + l.GetValue()
			}
			out = append(out, fmt.Sprint(text, " ", m.GetCounter().GetValue()))
		}
	}
	slices.Sort(out)
	return out
}

// TestWhatIsMeasured: points are always measured, plug-ins one by one in attempts that are sampled, and of these at one node in
// sixteen.
func TestWhatIsMeasured(t *testing.T) {
	for _, sampled := range []bool{false, true} {
		registry := prometheus.NewRegistry()
		m, err := metrics.New(registry)
		if err != nil {
			t.Fatal(err)
		}
		x := &scripted{named: "X", answers: map[string]*fwk.Status{"Permit": fwk.NewStatus(fwk.Unschedulable)}}
		p := make1(t, profile.Clients{Metrics: m}, x)
		state, pod := profile.NewCycleState(), &corev1.Pod{}
		if sampled {
			state.Sample()
		}
		nodes := []fwk.NodeInfo{oneNode()}
		p.RunPreFilter(t.Context(), state, pod, nodes)
		for range 20 {
			p.RunFilterPlugins(t.Context(), state, pod, nodes[0])
		}
		p.RunPreScorePlugins(t.Context(), state, pod, nodes)
		p.RunScorePlugins(t.Context(), state, pod, nodes)
		p.RunReservePluginsReserve(t.Context(), state, pod, "n")
		p.RunPermit(t.Context(), state, pod, "n")
		const point, plugin = "scheduler_framework_extension_point_duration_seconds ", "scheduler_plugin_execution_duration_seconds "
		want := []string{
			point + "Permit s Unschedulable 1", point + "PreFilter s Success 1", point + "PreScore s Success 1", point + "Reserve s Success 1",
			point + "Score s Success 1",
		}
		if sampled {
			want = append(want, plugin+"Filter X Success 2", plugin+"Permit X Unschedulable 1", plugin+"PreFilter X Success 1",
				plugin+"PreScore X Success 1", plugin+"Reserve X Success 1", plugin+"Score X Success 1")
		}
		if diff := cmp.Diff(want, observed(t, registry)); diff != "" {
			t.Errorf("sampled %v (-want +got):\n%s", sampled, diff)
		}
		const asked = "scheduler_plugin_evaluation_total "
		want = []string{asked + "Filter X s 20", asked + "PreFilter X s 1", asked + "PreScore X s 1", asked + "Score X s 1"}
		if diff := cmp.Diff(want, counted(t, registry)); diff != "" {
			t.Errorf("sampled %v (-want +got):\n%s", sampled, diff)
		}
	}
}
