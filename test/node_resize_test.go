// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// bounds are requests and limits of CPU and memory, as the API has them.
type bounds struct{ cpu, memory, maxCPU, maxMemory string }

func (b bounds) requirements() corev1.ResourceRequirements {
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	return corev1.ResourceRequirements{Requests: list(b.cpu, b.memory), Limits: list(b.maxCPU, b.maxMemory)}
}

// String is how kernel has them: a quota of processor time in each tenth of a second, and bytes.
func (b bounds) String() string {
	cpu, memory := resource.MustParse(b.maxCPU), resource.MustParse(b.maxMemory)
	return fmt.Sprintf("%d us, %d bytes", cpu.MilliValue()*100, memory.Value())
}

// patch is a change of the pod's own resources.
func (b bounds) patch() string {
	return fmt.Sprintf(`"resources":{"requests":{"cpu":%q,"memory":%q},"limits":{"cpu":%q,"memory":%q}}`, b.cpu, b.memory, b.maxCPU,
		b.maxMemory)
}

// are reports whether a pod's status has them for the pod as a whole.
func (b bounds) are(p *corev1.Pod) bool {
	same := func(a, b corev1.ResourceList) bool {
		return a.Cpu().Cmp(*b.Cpu()) == 0 && a.Memory().Cmp(*b.Memory()) == 0
	}
	want, has := b.requirements(), p.Status.Resources
	return has != nil && same(want.Requests, has.Requests) && same(want.Limits, has.Limits)
}

// resizing are a pod's conditions about a resize, and why: "PodResizePending/Infeasible".
func resizing(p *corev1.Pod) (out, message string) {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress {
			out, message = out+string(c.Type)+"/"+c.Reason, c.Message
		}
	}
	return out, message
}

// resizes gives a pod other resources of its own while its containers run: by the API's subresource, the node, the runtime and the kernel.
// Of its containers one has limits of its own, and the other the pod's.
func resizes(t *testing.T, n *realNode) {
	first, own := bounds{"100m", "64Mi", "200m", "128Mi"}, bounds{"50m", "16Mi", "100m", "32Mi"}
	p := idlePod("shared")
	p.Spec.Resources = new(first.requirements())
	// What is in its shared memory counts as its own.
	p.Spec.Containers[0] = container("free", "head -c 48m /dev/zero >/dev/shm/held; while :; do sleep 3600; done")
	p.Spec.Containers = append(p.Spec.Containers, container("own", "while :; do sleep 3600; done"))
	p.Spec.Containers[1].Resources = own.requirements()
	p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", "[ $(wc -c </dev/shm/held) = 50331648 ]"}}},
		PeriodSeconds: 1, FailureThreshold: 30, TimeoutSeconds: 10,
	}
	// Another pod leaves half a processor.
	nodes, err := n.c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rest := nodes.Items[0].Status.Allocatable[corev1.ResourceCPU]
	rest.Sub(resource.MustParse("500m"))
	big := idlePod("big")
	big.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: rest}
	n.create(t, p, big)
	n.ready(t, "big")
	before := n.ready(t, "shared")
	n.wantBounds(t, before, first, own)

	last := first
	for _, step := range []struct {
		name string
		to   bounds
		own  bounds // of the container that has its own
		why  string // it cannot be done
		says string
	}{
		{"more", bounds{"200m", "80Mi", "400m", "192Mi"}, own, "", ""},
		{"less", bounds{"100m", "48Mi", "150m", "96Mi"}, own, "", ""},
		{"with a container's own", bounds{"120m", "64Mi", "300m", "160Mi"}, bounds{"60m", "32Mi", "200m", "64Mi"}, "", ""},
		{"more than is left", bounds{"600m", "64Mi", "600m", "160Mi"}, bounds{"60m", "32Mi", "200m", "64Mi"}, "PodResizePending/Deferred",
			"Node didn't have enough resource: cpu, requested: 600, used: "},
		{"less than the last", bounds{"110m", "64Mi", "250m", "128Mi"}, bounds{"60m", "32Mi", "200m", "40Mi"}, "", ""},
		{"less memory than is used", bounds{"110m", "36Mi", "250m", "40Mi"}, bounds{"60m", "32Mi", "200m", "40Mi"}, "PodResizeInProgress/Error",
			"cannot decrease memory limits: "},
		{"as much as is used", bounds{"110m", "64Mi", "250m", "112Mi"}, bounds{"60m", "32Mi", "200m", "40Mi"}, "", ""},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			n.kubectl("patch", "pod", "shared", "--subresource", "resize", "--patch",
				`{"spec":{`+step.to.patch()+`,"containers":[{"name":"own",`+step.own.patch()+`}]}}`)
			if step.why == "" {
				last, own = step.to, step.own
			}
			generation := int64(0)
			now := n.pod(t, "shared", func(p *corev1.Pod) bool {
				why, _ := resizing(p)
				generation = p.Generation
				return last.are(p) && why == step.why && p.Status.ObservedGeneration == generation
			})
			if _, says := resizing(now); !strings.HasPrefix(says, step.says) {
				t.Errorf("the condition says %q, want %q", says, step.says)
			}
			allocated := last // what is promised, too, while it cannot be done
			if strings.HasPrefix(step.why, string(corev1.PodResizeInProgress)) {
				allocated = step.to
			}
			if want, got := allocated.requirements().Requests,
				now.Status.AllocatedResources; want.Cpu().Cmp(*got.Cpu()) != 0 || want.Memory().Cmp(*got.Memory()) != 0 {
				t.Errorf("%v are allocated, want %v", got, want)
			}
			if got := now.Status.ContainerStatuses[1].Resources; got.Limits.Memory().Cmp(resource.MustParse(own.maxMemory)) != 0 ||
				got.Requests.Cpu().Cmp(resource.MustParse(own.cpu)) != 0 {
				t.Errorf("the container's status has %v, want %v", got, own)
			}
			n.wantBounds(t, now, last, own)
			for i, c := range now.Status.ContainerStatuses {
				if was := before.Status.ContainerStatuses[i]; c.ContainerID != was.ContainerID || c.RestartCount != 0 {
					t.Errorf("container %s was %s, is %s, and was restarted %d times", c.Name, was.ContainerID, c.ContainerID, c.RestartCount)
				}
			}
		}) {
			return
		}
	}
	for _, reason := range []string{"ResizeStarted", "ResizeCompleted", "ResizeDeferred", "ResizeError"} {
		n.hasEvent(t, "shared", reason, "")
	}
}

// declared has pods that need what nodes declare: without that, the scheduler has no node for the one, and the API refuses the change of
// the other.
func declared(t *testing.T, n *realNode) {
	again := idlePod("again")
	again.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	again.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	again.Spec.Containers[0].Command = []string{"sh", "-c",
		"[ -e /v/been ] || { touch /v/been; exit 42; }; trap 'exit 0' TERM; sleep 3600 & wait $!"}
	again.Spec.Containers[0].RestartPolicy = new(corev1.ContainerRestartPolicyNever)
	again.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{{
		Action:    corev1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
	}}
	again.Spec.Containers = append(again.Spec.Containers, container("other", "while :; do sleep 3600; done"))
	starting, less, more := idlePod("starting"), bounds{"50m", "16Mi", "100m", "32Mi"}, bounds{"60m", "16Mi", "150m", "48Mi"}
	starting.Spec.InitContainers = []corev1.Container{container("init", "while :; do sleep 3600; done")}
	starting.Spec.InitContainers[0].Resources = less.requirements()
	n.create(t, again, starting)

	first := n.pod(t, "starting", func(p *corev1.Pod) bool {
		return len(p.Status.InitContainerStatuses) == 1 && p.Status.InitContainerStatuses[0].State.Running != nil
	}).Status.InitContainerStatuses[0]
	n.kubectl("patch", "pod", "starting", "--subresource", "resize", "--patch",
		`{"spec":{"initContainers":[{"name":"init",`+more.patch()+`}]}}`)
	p := n.pod(t, "starting", func(p *corev1.Pod) bool {
		r := p.Status.InitContainerStatuses[0].Resources
		return r != nil && r.Limits.Memory().Cmp(resource.MustParse(more.maxMemory)) == 0
	})
	if now := p.Status.InitContainerStatuses[0]; now.ContainerID != first.ContainerID {
		t.Errorf("the init container was %s, is %s", first.ContainerID, now.ContainerID)
	}
	dir := filepath.Join("kubepods/burstable/pod"+string(p.UID), strings.TrimPrefix(first.ContainerID, "containerd://"))
	if got := n.kernelBounds(t, dir); got != more.String() {
		t.Errorf("the init container has %s, want %s", got, more)
	}
	n.pod(t, "again", func(p *corev1.Pod) bool {
		return ready(*p) && p.Status.ContainerStatuses[0].RestartCount == 1 && p.Status.ContainerStatuses[1].RestartCount == 1
	})
}

// wantBounds wants the kernel to bound a pod so, its first container as the pod, and the second by its own.
func (n *realNode) wantBounds(t *testing.T, p *corev1.Pod, pod, own bounds) {
	t.Helper()
	dir := "kubepods/burstable/pod" + string(p.UID)
	want := map[string]string{dir: pod.String()}
	for i, b := range []bounds{pod, own} {
		want[filepath.Join(dir, strings.TrimPrefix(p.Status.ContainerStatuses[i].ContainerID, "containerd://"))] = b.String()
	}
	for dir, b := range want {
		if got := n.kernelBounds(t, dir); got != b {
			t.Errorf("cgroup %s has %s, want %s", dir, got, b)
		}
	}
}

// kernelBounds are a cgroup's, in the words of [bounds.String].
func (n *realNode) kernelBounds(t *testing.T, cgroup string) string {
	t.Helper()
	read := func(path ...string) string {
		text, err := os.ReadFile(filepath.Join(path...))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	const root = "/sys/fs/cgroup"
	cgroup = filepath.Join(n.host.cgroups(), cgroup)
	quota, memory := "", ""
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		quota, _, _ = strings.Cut(read(root, cgroup, "cpu.max"), " ")
		memory = read(root, cgroup, "memory.max")
	} else {
		quota, memory = read(root, "cpu", cgroup, "cpu.cfs_quota_us"), read(root, "memory", cgroup, "memory.limit_in_bytes")
	}
	us, err := strconv.Atoi(quota)
	if err != nil {
		t.Fatalf("the quota of %s is %q", cgroup, quota)
	}
	return fmt.Sprintf("%d us, %s bytes", us, memory)
}
