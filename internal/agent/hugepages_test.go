// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/allocatable"
	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/hardware"
	"github.com/mortise-dev/mortise/internal/agent/nodestatus"
)

// What does not fit is refused in kubelet's words, huge pages and disk too.
func TestFits(t *testing.T) {
	machine := hardware.Machine{CPUs: 2, Memory: 4 << 30, Disk: 1 << 30, HugePages: []hardware.HugePages{{Size: 2 << 20, Total: 8 << 20}}}
	n := &node{resources: allocatable.Node{Machine: machine, MaxPods: 10}, workers: map[types.UID]*worker{}}
	n.nodeStatus = nodestatus.New(nodestatus.Config{
		Addresses: &moving{}, Kubelet: Effective(nil), Runtime: &cri.Client{}, Clock: clock.RealClock{}, Resources: n.resources,
	})
	pod := func(name corev1.ResourceName, much string) *corev1.Pod {
		list := corev1.ResourceList{name: resource.MustParse(much)}
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: list}}}}}
	}
	n.workers["other"] = &worker{counted: true, spec: pod("hugepages-2Mi", "6Mi")}
	overhead := pod("cpu", "1500m")
	overhead.Spec.Overhead = corev1.ResourceList{"cpu": resource.MustParse("600m")}
	level := pod("cpu", "1")
	level.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("3")}}
	for name, want := range map[string]struct {
		pod *corev1.Pod
		err string
	}{
		"room":          {pod: pod("hugepages-2Mi", "2Mi")},
		"pages":         {pod("hugepages-2Mi", "4Mi"), "OutOfhugepages-2Mi: Node didn't have enough resource: hugepages-2Mi, requested: 4194304, used: 6291456, capacity: 8388608"},
		"another size":  {pod("hugepages-1Gi", "1Gi"), "OutOfhugepages-1Gi: Node didn't have enough resource: hugepages-1Gi, requested: 1073741824, used: 0, capacity: 0"},
		"disk":          {pod("ephemeral-storage", "2Gi"), "OutOfephemeral-storage: Node didn't have enough resource: ephemeral-storage, requested: 2147483648, used: 0, capacity: 1073741824"},
		"overhead":      {overhead, "OutOfcpu: Node didn't have enough resource: cpu, requested: 2100, used: 0, capacity: 2000"},
		"the pod's own": {level, "OutOfcpu: Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := n.fits(&worker{uid: "new"}, want.pod); err != nil {
				got = err.Error()
			}
			if got != want.err {
				t.Errorf("%s\nnot %s", got, want.err)
			}
		})
	}
}

// reservePages has the kernel keep so many huge pages of 2 MiB more, until the test is over. It says whether it did.
func reservePages(t *testing.T, count int64) bool {
	t.Helper()
	const path = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
	before, ok := hardware.Number(path)
	if !ok || os.WriteFile(path, []byte(strconv.FormatInt(before+count, 10)), 0o600) != nil {
		return false
	}
	t.Cleanup(func() {
		if err := os.WriteFile(path, []byte(strconv.FormatInt(before, 10)), 0o600); err != nil {
			t.Error(err)
		}
	})
	now, _ := hardware.Number(path)
	return now >= before+count
}

// hugePagesEndToEnd runs a pod that has huge pages, as memory and as files.
func hugePagesEndToEnd(t *testing.T, c *cluster) {
	asks := corev1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi"), "memory": resource.MustParse("64Mi")}
	c.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "huge"}, Spec: corev1.PodSpec{
		Volumes: []corev1.Volume{{Name: "pages", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumHugePages}}}},
		Containers: []corev1.Container{{
			Name: "c", Command: sh("mount | grep ' /pages ' | cut -d' ' -f5; truncate -s 4M /pages/f && echo made; sleep 1000"),
			Resources:    corev1.ResourceRequirements{Requests: asks, Limits: asks},
			VolumeMounts: []corev1.VolumeMount{{Name: "pages", MountPath: "/pages"}},
		}},
	}})
	c.await("huge", "ready", isReady)
	c.awaitLog("huge", "c", "hugetlbfs\nmade\n")
	c.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "huger"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Command: sh("sleep 1000"),
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"hugepages-2Mi": resource.MustParse("1Ti"), "memory": resource.MustParse("64Mi")}, Limits: corev1.ResourceList{"hugepages-2Mi": resource.MustParse("1Ti")},
		},
	}}}})
	c.await("huger", "refused", func(p *corev1.Pod) bool { return p != nil && p.Status.Reason == "OutOfhugepages-2Mi" })
}
