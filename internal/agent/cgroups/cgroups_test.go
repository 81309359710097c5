// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/allocatable"
	"github.com/mortise-dev/mortise/internal/agent/hardware"
	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
	"github.com/mortise-dev/mortise/internal/agent/runconfig"
)

// plays makes a directory that looks like the kernel's cgroups of a version.
func plays(t *testing.T, version int) string {
	t.Helper()
	root := t.TempDir()
	if version == 2 {
		if err := os.WriteFile(filepath.Join(root, "cgroup.controllers"), []byte("cpuset cpu memory pids\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return root
	}
	for _, c := range []string{"cpu", "memory", "pids", "freezer", "hugetlb"} {
		err := os.Mkdir(filepath.Join(root, c), 0o755)
		if err == nil && c != "hugetlb" { // a controller that is not mounted
			err = os.WriteFile(filepath.Join(root, c, "cgroup.procs"), nil, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

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

// counted are the pods of a node.
type counted []*corev1.Pod

func (c counted) CountedPods() []*corev1.Pod { return c }

// Each pod, each class and all pods together have their bounds, in either version.
func TestBounds(t *testing.T) {
	pods := []*corev1.Pod{sized("b", "250m", "500m"), sized("e", "", ""), sized("b2", "750m", "")}
	for name, want := range map[string]struct {
		version int
		systemd bool
		files   map[string]string
	}{
		"v1": {version: 1, files: map[string]string{
			"cpu/kubepods/cpu.shares": "3072", "memory/kubepods/memory.limit_in_bytes": "3221225472",
			"cpu/kubepods/burstable/cpu.shares": "1024", "cpu/kubepods/besteffort/cpu.shares": "2",
			"cpu/kubepods/burstable/podb/cpu.shares": "256", "cpu/kubepods/burstable/podb/cpu.cfs_quota_us": "50000",
			"cpu/kubepods/burstable/podb/cpu.cfs_period_us":        "100000",
			"memory/kubepods/burstable/podb/memory.limit_in_bytes": "67108864", "pids/kubepods/burstable/podb/pids.max": "99",
			"cpu/kubepods/besteffort/pode/cpu.shares": "2", "memory/kubepods/besteffort/pode/memory.limit_in_bytes": "",
			"cpu/kubepods/burstable/podb2/cpu.shares": "768", "cpu/kubepods/burstable/podb2/cpu.cfs_quota_us": "",
		}},
		"v2": {version: 2, files: map[string]string{
			"kubepods/cpu.weight": "240", "kubepods/memory.max": "3221225472",
			"kubepods/burstable/cpu.weight": "100", "kubepods/besteffort/cpu.weight": "1",
			"kubepods/burstable/podb/cpu.weight": "35", "kubepods/burstable/podb/cpu.max": "50000 100000",
			"kubepods/burstable/podb/memory.max": "67108864",
			"kubepods/burstable/podb/pids.max":   "99", "kubepods/besteffort/pode/cpu.weight": "1", "kubepods/besteffort/pode/memory.max": "",
			"kubepods/burstable/podb2/cpu.max": "",
		}},
		"v2 with systemd": {version: 2, systemd: true, files: map[string]string{
			"kubepods.slice/kubepods-burstable.slice/cpu.weight":                                 "100",
			"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podb.slice/cpu.max":      "50000 100000",
			"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pode.slice/cpu.weight": "1",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			root := plays(t, want.version)
			k := kubeletconfig.Default()
			k.PodPidsLimit = new(int64(99))
			config := runconfig.Node{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS}
			if want.systemd {
				config.CgroupDriver = runtimeapi.CgroupDriver_SYSTEMD
			}
			metrics := NewMetrics()
			m := New(Options{Pods: counted(pods), Config: config, Kubelet: k, Root: root, Metrics: metrics, Resources: allocatable.Node{
				Machine:      hardware.Machine{CPUs: 4, Memory: 4 << 30},
				KubeReserved: corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")},
			}})
			for _, pod := range pods {
				if err := m.Bound(pod); err != nil {
					t.Fatal(err)
				}
			}
			measured := make(chan prometheus.Metric, 10)
			metrics.took.Collect(measured)
			if len(measured) != 1 {
				t.Errorf("%d kinds of operations were measured", len(measured))
			}
			for path, text := range want.files {
				if got := hardware.Line(filepath.Join(root, path)); got != text {
					t.Errorf("%s: %q, not %q", path, got, text)
				}
			}
			if want.systemd {
				return
			}
			// Raised, bounds become wider and never narrower.
			if err := m.Raise(sized("b", "100m", "1")); err != nil {
				t.Fatal(err)
			}
			if made, _ := filepath.Glob(filepath.Join(root, "hugetlb", "*")); len(made) > 0 {
				t.Errorf("in the directory of a controller that is not mounted: %q", made)
			}
			quota := filepath.Join(root, "cpu/kubepods/burstable/podb/cpu.cfs_quota_us")
			shares := filepath.Join(root, "cpu/kubepods/burstable/podb/cpu.shares")
			if want.version == 2 {
				quota, shares = filepath.Join(root, "kubepods/burstable/podb/cpu.max"), filepath.Join(root, "kubepods/burstable/podb/cpu.weight")
			}
			if q, s := hardware.Line(quota), hardware.Line(shares); q != map[int]string{1: "100000", 2: "100000 100000"}[want.version] ||
				s != map[int]string{1: "256", 2: "35"}[want.version] {
				t.Errorf("raised: %s, %s", q, s)
			}
			for _, pod := range pods {
				for _, tree := range []string{"cpu", "memory", "pids", "."} { // the kernel removes the files of a cgroup itself
					files, _ := filepath.Glob(filepath.Join(root, tree, "kubepods", "*", "pod"+pod.Name, "*"))
					for _, f := range files {
						if err := os.Remove(f); err != nil {
							t.Fatal(err)
						}
					}
				}
				if err := m.Remove(t.Context(), pod.UID); err != nil {
					t.Error(err)
				}
			}
			if left, _ := filepath.Glob(filepath.Join(root, map[int]string{1: "*/", 2: ""}[want.version], "kubepods/*/pod*")); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

func TestWeight(t *testing.T) {
	for shares, want := range map[int64]int64{2: 1, 102: 17, 1024: 100, 2048: 174, 262144: 10000} {
		if got := weight(shares); got != want {
			t.Errorf("%d shares weigh %d, not %d", shares, got, want)
		}
	}
}

func TestCgroupOfAllPods(t *testing.T) {
	for parent, want := range map[string]string{
		"/kubepods/burstable/pod1": "/kubepods", "/a/b/kubepods/pod1": "/a/b/kubepods",
		"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice": "/kubepods.slice",
		"/a.slice/a-kubepods.slice/a-kubepods-pod1.slice":                        "/a.slice/a-kubepods.slice",
	} {
		if got := allPods(parent); got != want {
			t.Errorf("%s: %s, want %s", parent, got, want)
		}
	}
	if err := (tree{root: t.TempDir()}).mustWrite("/no/such/cgroup", "pids", 1, "pids.max"); err == nil {
		t.Error("a cgroup that is not there takes a bound")
	}
}
