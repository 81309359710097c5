// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// resized gives a pod other resources, as its subresource does.
func (c *cluster) resized(name, cpu string) {
	c.t.Helper()
	pod, err := c.client.CoreV1().Pods("default").Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	pod = pod.DeepCopy()
	pod.Spec.Containers[0].Resources = asking(cpu)
	if _, err := c.client.CoreV1().Pods("default").Update(c.t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func asking(cpu string) corev1.ResourceRequirements {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	return corev1.ResourceRequirements{Requests: list, Limits: list}
}

// has says whether the first container is said to have so much, and whether the pod has the condition, for the reason.
func has(cpu string, condition corev1.PodConditionType, reason string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		if p == nil || len(p.Status.ContainerStatuses) != 1 || p.Status.ContainerStatuses[0].Resources == nil || p.Status.ContainerStatuses[0].State.Running == nil {
			return false
		}
		s := p.Status.ContainerStatuses[0]
		limit, allocated := s.Resources.Limits[corev1.ResourceCPU], s.AllocatedResources[corev1.ResourceCPU]
		found := ""
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress {
				found += string(c.Type) + c.Reason
			}
		}
		return limit.Cmp(resource.MustParse(cpu)) == 0 && allocated.Cmp(limit) == 0 && found == string(condition)+reason
	}
}

func TestResizeInPlace(t *testing.T) {
	c, r := newFake(t, nil)
	p := onePod("p")
	p.Spec.Containers[0].Resources = asking("100m")
	c.create(p)
	first := c.await("p", "running", has("100m", "", ""))
	c.resized("p", "200m")
	second := c.await("p", "resized", has("200m", "", ""))
	if second.Status.ContainerStatuses[0].ContainerID != first.Status.ContainerStatuses[0].ContainerID || r.Quota("p", "c") != 20_000 {
		t.Errorf("quota %d, %+v", r.Quota("p", "c"), second.Status.ContainerStatuses)
	}
	c.resized("p", "4000")
	c.await("p", "refused its resize", has("200m", corev1.PodResizePending, corev1.PodReasonInfeasible))
	c.resized("p", "300m")
	c.await("p", "resized again", has("300m", "", ""))

	r.Fault("UpdateContainerResources", func() error { return errors.New("no") })
	c.resized("p", "400m")
	c.await("p", "failing", has("300m", corev1.PodResizeInProgress, corev1.PodReasonError))
	r.Fault("UpdateContainerResources", nil)

	for _, reason := range []string{"ResizeStarted", "ResizeCompleted", "ResizeInfeasible", "ResizeError"} {
		c.awaitEvent("p", reason)
	}
	const summary = `{"containers":[{"name":"c","resources":{"limits":{"cpu":"%s"},"requests":{"cpu":"%s"}}}],"generation":0%s}`
	events := strings.Join(c.events("p"), "\n")
	for _, want := range []string{
		"ResizeStarted: Pod resize started: " + fmt.Sprintf(summary, "200m", "200m", ""),
		"ResizeCompleted: Pod resize completed: " + fmt.Sprintf(summary, "200m", "200m", ""),
		"ResizeInfeasible: Pod resize Infeasible: " + fmt.Sprintf(summary, "4k", "4k", `,"error":"Node didn't have enough capacity: cpu, requested: 4000000, capacity: `+strconv.Itoa(1000*runtime.NumCPU())+`"`),
		"ResizeError: Pod resize error: " + fmt.Sprintf(summary, "400m", "400m", `,"error":"no"`),
	} {
		if !strings.Contains(events, want) {
			t.Errorf("%s is missing in\n%s", want, events)
		}
	}

	// A new life of the node knows from the status what there is.
	c.stop()
	c.start()
	c.await("p", "resized after all", has("400m", "", ""))
	if n := r.Calls("CreateContainer"); n != 1 {
		t.Errorf("%d containers were made", n)
	}
}

func TestResizeByRestart(t *testing.T) {
	c, r := newFake(t, nil)
	p := onePod("p")
	p.Spec.Containers[0].Resources = asking("100m")
	p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer}}
	c.create(p)
	c.await("p", "running", has("100m", "", ""))
	c.resized("p", "200m")
	pod := c.await("p", "resized", has("200m", "", ""))
	if pod.Status.ContainerStatuses[0].RestartCount != 1 || r.Quota("p", "c") != 20_000 || r.Calls("UpdateContainerResources") != 0 {
		t.Errorf("quota %d, %+v", r.Quota("p", "c"), pod.Status.ContainerStatuses)
	}
	if got := strings.Join(c.events("p"), "\n"); !strings.Contains(got, "Killing: Container c resize requires restart") {
		t.Errorf("events: %s", got)
	}
	c.awaitEvent("p", "ResizeCompleted")
}
