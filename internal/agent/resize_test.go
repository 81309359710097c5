// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// has reports whether the first container is said to have so much, and whether the pod has the condition, for the reason.
func has(cpu string, condition corev1.PodConditionType, reason string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		if p == nil || len(p.Status.ContainerStatuses) != 1 || p.Status.ContainerStatuses[0].Resources == nil ||
			p.Status.ContainerStatuses[0].State.Running == nil {
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
		return limit.Cmp(resource.MustParse(cpu)) == 0 && (allocated.Cmp(limit) == 0) == (condition != corev1.PodResizeInProgress) &&
			found == string(condition)+reason
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

	const summary = `{"containers":[{"name":"c","resources":{"limits":{"cpu":"%s"},"requests":{"cpu":"%s"}}}],"generation":0%s}`
	for _, want := range []string{
		"ResizeStarted: Pod resize started: " + fmt.Sprintf(summary, "200m", "200m", ""),
		"ResizeCompleted: Pod resize completed: " + fmt.Sprintf(summary, "200m", "200m", ""),
		"ResizeInfeasible: Pod resize Infeasible: " + fmt.Sprintf(summary, "4k", "4k",
			`,"error":"Node didn't have enough capacity: cpu, requested: 4000000, capacity: `+strconv.Itoa(1000*runtime.NumCPU())+`"`),
		"ResizeError: Pod resize error: " + fmt.Sprintf(summary, "400m", "400m", `,"error":"no"`),
	} {
		c.awaitEvent("p", want)
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
	p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceCPU,
		RestartPolicy: corev1.RestartContainer}}
	c.create(p)
	c.await("p", "running", has("100m", "", ""))
	c.resized("p", "200m")
	pod := c.await("p", "resized", has("200m", "", ""))
	if pod.Status.ContainerStatuses[0].RestartCount != 1 || r.Quota("p", "c") != 20_000 || r.Calls("UpdateContainerResources") != 0 {
		t.Errorf("quota %d, %+v", r.Quota("p", "c"), pod.Status.ContainerStatuses)
	}
	c.awaitEvent("p", "Killing: Container c resize requires restart")
	c.awaitEvent("p", "ResizeCompleted")
}

// TestMemoryInUseIsNotTakenAway gives a container, and then a whole pod, less memory than they use: nothing is changed until they use less.
func TestMemoryInUseIsNotTakenAway(t *testing.T) {
	c, r := newFake(t, nil)
	dir := filepath.Join(c.options.Host.CgroupFS, "memory")
	mountControllers(t, c.options.Host.CgroupFS, "memory")
	memory := func(text string) corev1.ResourceRequirements {
		list := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(text)}
		return corev1.ResourceRequirements{Requests: list, Limits: list}
	}
	p := onePod("p")
	p.Spec.Resources = new(memory("100Mi"))
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "d", Resources: memory("40Mi")})
	pod := c.create(p)
	is := func(all, d, condition string) func(*corev1.Pod) bool {
		return func(p *corev1.Pod) bool {
			if p == nil || len(p.Status.ContainerStatuses) != 2 || p.Status.Resources == nil || p.Status.ContainerStatuses[1].Resources == nil {
				return false
			}
			found := ""
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress {
					found += c.Reason + ": " + c.Message
				}
			}
			return p.Status.Resources.Limits.Memory().Cmp(resource.MustParse(all)) == 0 &&
				p.Status.ContainerStatuses[1].Resources.Limits.Memory().Cmp(resource.MustParse(d)) == 0 && found == condition
		}
	}
	c.await("p", "running", is("100Mi", "40Mi", ""))
	c.await("p", "ready", isReady)
	give := func(all, d string) {
		t.Helper()
		pod, err := c.client.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pod = pod.DeepCopy()
		pod.Spec.Resources, pod.Spec.Containers[1].Resources = new(memory(all)), memory(d)
		if _, err := c.client.CoreV1().Pods("default").Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	r.Uses("p", 30<<20)
	give("100Mi", "20Mi")
	c.await("p", "keeping its container's memory", is("100Mi", "40Mi",
		`Error: cannot decrease memory limits: attempting to set container "d" memory limit (20971520) below current usage (31457280)`))
	usage := filepath.Join(dir, "kubepods/burstable/pod"+string(pod.UID), "memory.usage_in_bytes")
	if err := os.WriteFile(usage, []byte("62914560\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	give("50Mi", "40Mi")
	c.await("p", "keeping its own", is("100Mi", "40Mi",
		"Error: cannot decrease memory limits: attempting to set pod memory limit (52428800) below current usage (62914560)"))
	if n := r.Calls("UpdateContainerResources"); n != 0 {
		t.Errorf("%d containers were given other bounds", n)
	}
	r.Uses("p", 10<<20)
	if err := os.WriteFile(usage, []byte("20971520\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	give("50Mi", "20Mi")
	c.await("p", "resized", is("50Mi", "20Mi", ""))
}

// sharing are resources of a pod as a whole.
func sharing(request, limit string) *corev1.ResourceRequirements {
	return &corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(request)},
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(limit)},
	}
}

// whole reports whether a pod is said to have so much as a whole, and has the condition, for the reason.
func whole(request, limit string, condition corev1.PodConditionType, reason string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		if p == nil || p.Status.Phase != corev1.PodRunning || p.Status.Resources == nil {
			return false
		}
		found := ""
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress {
				found += string(c.Type) + c.Reason
			}
		}
		has, asked, allocated := p.Status.Resources.Limits[corev1.ResourceCPU], p.Status.Resources.Requests[corev1.ResourceCPU],
			p.Status.AllocatedResources[corev1.ResourceCPU]
		return has.Cmp(resource.MustParse(limit)) == 0 && asked.Cmp(resource.MustParse(request)) == 0 &&
			(allocated.Cmp(asked) == 0) == (condition != corev1.PodResizeInProgress) && found == string(condition)+reason
	}
}

// TestResizeOfAWholePod gives a pod other resources of its own: they bound its cgroup and the container that has no limit.
func TestResizeOfAWholePod(t *testing.T) {
	c, r := newFake(t, nil)
	mountControllers(t, c.options.Host.CgroupFS, "cpu")
	p := onePod("p")
	p.Spec.Resources = sharing("100m", "200m")
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "d", Resources: asking("50m")})
	pod := c.create(p)
	c.await("p", "running", whole("100m", "200m", "", ""))
	c.await("p", "ready", isReady)
	quotas := func(ofPod, ofC int64) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(c.options.Host.CgroupFS, "cpu/kubepods/burstable/pod"+string(pod.UID), "cpu.cfs_quota_us"))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(string(text)); got != strconv.FormatInt(ofPod, 10) || r.Quota("p", "c") != ofC || r.Quota("p", "d") != 5_000 {
			t.Errorf("the pod's quota is %s, the containers' %d and %d; want %d, %d and 5000", got, r.Quota("p", "c"), r.Quota("p", "d"), ofPod, ofC)
		}
	}
	quotas(20_000, 20_000)
	shared := func(request, limit string) {
		t.Helper()
		pod, err := c.client.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pod = pod.DeepCopy()
		pod.Spec.Resources = sharing(request, limit)
		if _, err := c.client.CoreV1().Pods("default").Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	shared("200m", "400m")
	c.await("p", "resized", whole("200m", "400m", "", ""))
	quotas(40_000, 40_000)
	for _, reason := range []string{"ResizeStarted", "ResizeCompleted"} {
		c.awaitEvent("p", reason)
	}
	if n := r.Calls("UpdateContainerResources"); n != 1 {
		t.Errorf("%d containers were given other bounds, want the one without a limit", n)
	}
	shared("4000", "4000")
	c.await("p", "refused its resize", whole("200m", "400m", corev1.PodResizePending, corev1.PodReasonInfeasible))
	quotas(40_000, 40_000)
	shared("200m", "300m")
	c.await("p", "resized again", whole("200m", "300m", "", ""))
	quotas(30_000, 30_000)

	r.Fault("UpdateContainerResources", func() error { return errors.New("no") })
	shared("250m", "500m") // what is promised, and not done, is allocated
	c.await("p", "failing", whole("200m", "300m", corev1.PodResizeInProgress, corev1.PodReasonError))
	r.Fault("UpdateContainerResources", nil)
	// A new life of the node knows from the status what there is.
	c.stop()
	c.start()
	c.await("p", "resized after all", whole("250m", "500m", "", ""))
	quotas(50_000, 50_000)
	if n := r.Calls("CreateContainer"); n != 2 {
		t.Errorf("%d containers were made", n)
	}
}
