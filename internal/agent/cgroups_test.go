// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/cgroups"
	"github.com/mortise-dev/mortise/internal/agent/hardware"
	"github.com/mortise-dev/mortise/internal/agent/runconfig"
)

func sized(name, cpu, limit string) *corev1.Pod {
	out := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	if cpu != "" {
		out.Requests["cpu"] = resource.MustParse(cpu)
	}
	if limit != "" {
		out.Limits["cpu"], out.Limits["memory"] = resource.MustParse(limit), resource.MustParse("64Mi")
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: out}}}}
}

// mountControllers makes the trees of controllers of cgroups v1, as they are when they are mounted and nothing is in them.
func mountControllers(t *testing.T, root string, controllers ...string) {
	t.Helper()
	for _, controller := range controllers {
		tree := filepath.Join(root, controller)
		if err := os.Mkdir(tree, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(tree, "cgroup.procs"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A pod has its cgroup when its sandbox is made.
func TestCgroupBeforeSandbox(t *testing.T) {
	c, r := newFake(t, nil)
	seen := make(chan string, 1)
	mountControllers(t, c.options.Host.CgroupFS, "cpu", "memory")
	r.Fault("RunPodSandbox", func() error {
		files, _ := filepath.Glob(filepath.Join(c.options.Host.CgroupFS, "memory/kubepods/burstable/pod*/memory.limit_in_bytes"))
		text := ""
		if len(files) == 1 {
			text = hardware.Line(files[0])
		}
		select {
		case seen <- text:
		default:
		}
		return nil
	})
	pod := sized("made", "100m", "200m")
	pod.UID = ""
	c.create(pod)
	c.await("made", "running", running(0))
	if got := <-seen; got != "67108864" {
		t.Errorf("when its sandbox was made, the pod's cgroup was bounded by %q", cmp.Or(got, "nothing"))
	}
}

// boundOf reads a bound of a pod's real cgroup.
func boundOf(pod *corev1.Pod, controller, one, two string) string {
	parent := (&runconfig.Node{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS}).CgroupParent(pod)
	if path := filepath.Join(cgroups.DefaultRoot, parent, two); hardware.Line(path) != "" {
		return hardware.Line(path)
	}
	return hardware.Line(filepath.Join(cgroups.DefaultRoot, controller, parent, one))
}

// cgroupsEndToEnd runs a pod with bounds and overhead of its own, which the kernel holds it to.
func cgroupsEndToEnd(t *testing.T, c *cluster) {
	c.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "whole"}, Spec: corev1.PodSpec{
		Resources: &corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"cpu": resource.MustParse("200m")},
			Limits:   corev1.ResourceList{"cpu": resource.MustParse("500m"), "memory": resource.MustParse("64Mi")},
		},
		Overhead:                      corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("16Mi")},
		TerminationGracePeriodSeconds: new(int64(0)),
		Containers:                    []corev1.Container{{Name: "a", Command: sh("sleep 1000")}, {Name: "b", Command: sh("sleep 1000")}},
	}})
	pod := c.await("whole", "ready", isReady)
	if pod.Status.QOSClass != corev1.PodQOSBurstable {
		t.Errorf("class %s", pod.Status.QOSClass)
	}
	if got := boundOf(pod, "memory", "memory.limit_in_bytes", "memory.max"); got != "83886080" {
		t.Errorf("memory: %s", got)
	}
	if got := boundOf(pod, "cpu", "cpu.cfs_quota_us", "cpu.max"); got != "60000" && got != "60000 100000" {
		t.Errorf("quota: %s", got)
	}
	if got := boundOf(pod, "cpu", "cpu.shares", "cpu.weight"); got != "307" && got != "41" {
		t.Errorf("shares: %s", got)
	}
	if err := c.client.CoreV1().Pods("default").Delete(t.Context(), "whole", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await("whole", "gone", func(p *corev1.Pod) bool { return p == nil })
	if got := boundOf(pod, "memory", "memory.limit_in_bytes", "memory.max"); got != "" {
		t.Errorf("its cgroup is still there: %s", got)
	}
}
