// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// admits has the node admit pods by its Node as users change it: by labels and extended resources that come later, and by host ports.
func admits(t *testing.T, n *realNode) {
	nodes, err := n.c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 {
		t.Fatalf("nodes %v, %v", nodes, err)
	}
	name := nodes.Items[0].Name
	patch := func(text string, subresources ...string) {
		t.Helper()
		nodes, how := n.c.CoreV1().Nodes(), types.StrategicMergePatchType
		if _, err := nodes.Patch(t.Context(), name, how, []byte(text), metav1.PatchOptions{}, subresources...); err != nil {
			t.Fatal(err)
		}
	}
	patch(`{"metadata": {"labels": {"color": "blue"}}}`)
	patch(`{"status": {"capacity": {"example.com/dongle": "2"}, "allocatable": {"example.com/dongle": "2"}}}`, "status")
	asking := func(pod, dongles string) *corev1.Pod {
		p := idlePod(pod)
		list := corev1.ResourceList{"example.com/dongle": resource.MustParse(dongles)}
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
		p.Spec.NodeSelector = map[string]string{"color": "blue"}
		return p
	}
	listening := func(pod string) *corev1.Pod {
		p := webPod(pod, nil)
		p.Spec.Containers[0].Ports[0].HostPort = 18090
		return p
	}
	n.create(t, asking("two", "2"), listening("first"))
	n.ready(t, "two", "first")
	// These name their node themselves, so that no scheduler keeps them away.
	one, second, red := asking("one", "1"), listening("second"), idlePod("red")
	red.Spec.NodeSelector = map[string]string{"color": "red"}
	for _, p := range []*corev1.Pod{one, second, red} {
		p.Spec.NodeName = name
	}
	n.create(t, one, second, red)
	for pod, want := range map[string][2]string{
		"one":    {"OutOfexample.com/dongle", "Node didn't have enough resource: example.com/dongle, requested: 1, used: 2, capacity: 2"},
		"second": {"NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"},
		"red":    {"NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"},
	} {
		p := n.pod(t, pod, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
		if p.Status.Reason != want[0] || p.Status.Message != "Pod was rejected: "+want[1] {
			t.Errorf("pod %s: %s: %s", pod, p.Status.Reason, p.Status.Message)
		}
	}
	patch(`{"metadata": {"labels": {"color": null}}}`)
	patch(`{"status": {"capacity": {"example.com/dongle": null}, "allocatable": {"example.com/dongle": null}}}`, "status")
}
