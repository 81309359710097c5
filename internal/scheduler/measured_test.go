// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
)

// scraped are the values of /metrics by name and labels.
// ours reports whether a series is the scheduler's.
func ours(name string) bool {
	return strings.HasPrefix(name, "scheduler_") || strings.HasPrefix(name, "dynamic_resource_allocation_")
}

func scraped(t *testing.T, c kubernetes.Interface) map[string]string {
	t.Helper()
	b, err := c.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "} "); ok && ours(name) {
			out[name+"}"] = value
		} else if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && ours(name) {
			out[name] = value
		}
	}
	return out
}

func TestMetrics(t *testing.T) {
	_, c := cluster(t)
	makeClass(t, c, "high", 100)
	addNode(t, c, "a", "2")
	addPod(t, c, "pilot", "100m", func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"x": "y"} })
	awaitPod(t, c, "pilot", refused("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."))
	addPod(t, c, "victim", "2", nil)
	awaitPod(t, c, "victim", on("a"))
	awaitEvent(t, c, "victim", "Scheduled", "") // it comes after what is measured
	addPod(t, c, "important", "2", func(s *corev1.PodSpec) { s.PriorityClassName = "high" })
	awaitPod(t, c, "important", nominatedTo("a"))

	got := scraped(t, c)
	for name, want := range map[string]string{
		`scheduler_schedule_attempts_total{profile="default-scheduler",result="scheduled"}`:                                               "1",
		`scheduler_schedule_attempts_total{profile="default-scheduler",result="error"}`:                                                   "0",
		`scheduler_scheduling_attempt_duration_seconds_count{profile="default-scheduler",result="scheduled"}`:                             "1",
		`scheduler_pod_scheduling_attempts_count`:                                                                                         "1",
		`scheduler_pod_scheduling_attempts_bucket{le="1"}`:                                                                                "1",
		`scheduler_pod_scheduling_sli_duration_seconds_count{attempts="1"}`:                                                               "1",
		`scheduler_preemption_victims_count`:                                                                                              "1",
		`scheduler_preemption_victims_sum`:                                                                                                "1",
		`scheduler_pending_pods{queue="gated"}`:                                                                                           "0",
		`scheduler_unschedulable_pods{plugin="NodeAffinity",profile="default-scheduler"}`:                                                 "1",
		`scheduler_cache_size{type="nodes"}`:                                                                                              "1",
		`scheduler_cache_size{type="pods"}`:                                                                                               "1",
		`scheduler_queue_incoming_pods_total{event="UnscheduledPodAdd",queue="active"}`:                                                   "3",
		`scheduler_queue_incoming_entities_total{event="UnscheduledPodAdd",queue="active",type="pod"}`:                                    "3",
		`scheduler_framework_extension_point_duration_seconds_count{extension_point="Bind",profile="default-scheduler",status="Success"}`: "1",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %s", name, got[name], want)
		}
	}
	// Of these there are as many as there were attempts, which the machine's pace decides.
	for _, name := range []string{
		`scheduler_schedule_attempts_total{profile="default-scheduler",result="unschedulable"}`,
		`scheduler_scheduling_algorithm_duration_seconds_count`,
		`scheduler_preemption_attempts_total`,
		`scheduler_queue_incoming_pods_total{event="ScheduleAttemptFailure",queue="unschedulable"}`,
		`scheduler_framework_extension_point_duration_seconds_count{extension_point="PreFilter",profile="default-scheduler",status="Success"}`,
		`scheduler_framework_extension_point_duration_seconds_count{extension_point="Filter",profile="default-scheduler",status="Success"}`,
		`scheduler_framework_extension_point_duration_seconds_count{extension_point="PostFilter",profile="default-scheduler",status="Unschedulable"}`,
		`scheduler_event_handling_duration_seconds_count{event="NodeAdd"}`,
		`scheduler_plugin_evaluation_total{extension_point="Filter",plugin="NodeResourcesFit",profile="default-scheduler"}`,
		`scheduler_plugin_evaluation_total{extension_point="PreFilter",plugin="NodeAffinity",profile="default-scheduler"}`,
		`scheduler_event_handling_duration_seconds_count{event="UnscheduledPodAdd"}`,
	} {
		if got[name] == "" || got[name] == "0" {
			t.Errorf("%s is %q, want some", name, got[name])
		}
	}
}
