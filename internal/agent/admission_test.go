// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// refusedFor reports whether a pod was refused, with the reason and the message.
func refusedFor(reason, message string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		return p != nil && p.Status.Phase == corev1.PodFailed && p.Status.Reason == reason && p.Status.Message == "Pod was rejected: "+message
	}
}

// patchNode is what somebody does to the Node.
func (c *cluster) patchNode(patch string, subresources ...string) {
	c.t.Helper()
	nodes, how := c.client.CoreV1().Nodes(), types.StrategicMergePatchType
	if _, err := nodes.Patch(c.t.Context(), "n1", how, []byte(patch), metav1.PatchOptions{}, subresources...); err != nil {
		c.t.Fatal(err)
	}
}

func TestLaterLabelsOfTheNodeCount(t *testing.T) {
	refused := refusedFor("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector")
	c, _ := newFake(t, nil)
	blue := func(name string) *corev1.Pod {
		pod := onePod(name)
		pod.Spec.NodeSelector = map[string]string{"color": "blue"}
		return pod
	}
	c.create(blue("early"))
	c.await("early", "refused", refused)
	c.awaitEvent("early", "NodeAffinity: Predicate NodeAffinity failed")
	c.patchNode(`{"metadata": {"labels": {"color": "blue"}}}`)
	c.create(blue("late"))
	c.await("late", "ready", isReady)
	c.patchNode(`{"metadata": {"labels": {"color": "red"}}}`)
	// A pod that comes before the node's watch has told of the label is still taken, as by kubelet. Each that follows gives the watch time.
	for i, taken := 0, true; taken; i++ {
		name := fmt.Sprintf("too-late-%d", i)
		c.create(blue(name))
		pod := c.await(name, "refused or ready", func(p *corev1.Pod) bool { return refused(p) || isReady(p) })
		if taken = !refused(pod); taken && i == 20 {
			t.Fatal("pods are taken by labels that the node has no more")
		}
	}
	c.await("late", "ready still", isReady)
}

// A host port has one pod, also after the node has restarted.
func TestHostPortsAreTaken(t *testing.T) {
	c, _ := newFake(t, nil)
	with := func(name string) *corev1.Pod {
		pod := onePod(name)
		pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080}}
		return pod
	}
	taken := refusedFor("NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports")
	c.create(with("first"))
	c.await("first", "ready", isReady)
	c.create(with("second"))
	// As with kubelet, the status says nothing of containers, so that kubectl shows the reason.
	if s := c.await("second", "refused", taken).Status; s.ContainerStatuses != nil || s.Conditions != nil || s.StartTime == nil {
		t.Errorf("status of the refused pod: %+v", s)
	}
	c.stop()
	c.create(with("third"))
	c.start()
	c.await("third", "refused", taken)
	if err := c.client.CoreV1().Pods("default").Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await("first", "gone", func(p *corev1.Pod) bool { return p == nil })
	c.create(with("fourth"))
	c.await("fourth", "ready", isReady)
}

// Extended resources that somebody puts into the Node stay there, and are used up.
func TestExtendedResources(t *testing.T) {
	c, _ := newFake(t, nil)
	c.patchNode(`{"status": {"capacity": {"example.com/dongle": "2"}, "allocatable": {"example.com/dongle": "2"}}}`, "status")
	asking := func(name, dongles string) *corev1.Pod {
		pod := onePod(name)
		list := corev1.ResourceList{"example.com/dongle": resource.MustParse(dongles)}
		pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
		return pod
	}
	c.create(asking("two", "2"))
	c.await("two", "ready", isReady)
	c.create(asking("one", "1"))
	c.await("one", "refused", refusedFor("OutOfexample.com/dongle",
		"Node didn't have enough resource: example.com/dongle, requested: 1, used: 2, capacity: 2"))
}

// A critical pod that finds no room gets that of another.
func TestCriticalPodsPreempt(t *testing.T) {
	c, _ := newConfigured(t, "maxPods: 1\n", nil)
	c.create(onePod("plain"))
	c.await("plain", "ready", isReady)
	c.create(onePod("more"))
	c.await("more", "refused", refusedFor("OutOfpods", "Node didn't have enough resource: pods, requested: 1, used: 1, capacity: 1"))
	critical := onePod("critical")
	critical.Spec.Priority = new(int32(2_000_000_000))
	c.create(critical)
	c.await("critical", "ready", isReady)
	plain := c.await("plain", "preempted", func(p *corev1.Pod) bool {
		return p != nil && p.Status.Phase == corev1.PodFailed && p.Status.Reason == "Preempting"
	})
	if plain.Status.Message != "Preempted in order to admit critical pod" {
		t.Errorf("message: %s", plain.Status.Message)
	}
	var disrupted corev1.PodCondition
	for _, condition := range plain.Status.Conditions {
		if condition.Type == corev1.DisruptionTarget {
			disrupted = condition
		}
	}
	const message = "Pod was preempted by Kubelet to accommodate a critical pod."
	if disrupted.Reason != corev1.PodReasonTerminationByKubelet || disrupted.Message != message {
		t.Errorf("condition: %+v", disrupted)
	}
	c.awaitEvent("plain", "Preempting: Preempted in order to admit critical pod")
}
