// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package memorymanager

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/cputopology"
	"github.com/mortise-dev/mortise/internal/agent/resourcemetrics"
)

// start makes the manager of a machine with two NUMA nodes of 4 GiB; the first has 1 GiB reserved.
func start(t *testing.T, dir string, change func(*Config)) (*Manager, string, error) {
	t.Helper()
	log := &bytes.Buffer{}
	one := resource.MustParse("1Gi")
	c := Config{
		Policy: "Static", Machine: cputopology.Machine{Nodes: []cputopology.Node{{ID: 0, Memory: 4 << 30}, {ID: 1, Memory: 4 << 30}}},
		Reserved:       corev1.ResourceList{corev1.ResourceMemory: one},
		ReservedMemory: []configv1beta1.MemoryReservation{{NumaNode: 0, Limits: corev1.ResourceList{corev1.ResourceMemory: one}}},
		GateOn:         func(string) bool { return false }, Dir: dir, Metrics: resourcemetrics.New(),
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	}
	if change != nil {
		change(&c)
	}
	m, err := New(c)
	return m, log.String(), err
}

func admit(t *testing.T, m *Manager, uid, memory string) (string, error) {
	t.Helper()
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse(memory)}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}, Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Name: "app", Resources: corev1.ResourceRequirements{Requests: list, Limits: list}},
	}}}
	c := &pod.Spec.Containers[0]
	if err := m.Allocate(t.Context(), containermanager.Request{Operation: containermanager.Add, Pod: pod, Container: c}); err != nil {
		return "", err
	}
	var o containermanager.Options
	err := m.AddOptions(t.Context(), pod, c, &o)
	return o.MemoryNodes, err
}

func TestMemorySurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	m, _, err := start(t, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ uid, memory, nodes string }{{"a", "2Gi", "0"}, {"b", "2Gi", "1"}, {"a", "2Gi", "0"}} {
		if nodes, err := admit(t, m, c.uid, c.memory); err != nil || nodes != c.nodes {
			t.Errorf("pod %s: NUMA nodes %q, error %v", c.uid, nodes, err)
		}
		if m, _, err = start(t, dir, nil); err != nil {
			t.Fatal(err)
		}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "b"}}
	var own podresources.ContainerResources
	var all podresources.AllocatableResourcesResponse
	m.Describe(pod, &corev1.Container{Name: "app"}, &own)
	m.DescribeNode(&all)
	if b := own.GetMemory(); len(b) != 1 || b[0].GetMemoryType() != "memory" || b[0].GetSize() != 2<<30 ||
		b[0].GetTopology().GetNodes()[0].GetID() != 1 {
		t.Errorf("the pod resources API has %v", b)
	}
	if b := all.GetMemory(); len(b) != 2 || b[0].GetSize() != 3<<30 || b[1].GetSize() != 4<<30 {
		t.Errorf("the pod resources API has %v of the node", b)
	}
	const full = "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
	if _, err := admit(t, m, "c", "3Gi"); err == nil || err.Error() != full {
		t.Errorf("error %v", err)
	}
	if err := m.Release(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	if nodes, err := admit(t, m, "c", "3Gi"); err != nil || nodes != "1" {
		t.Errorf("NUMA nodes %q, error %v", nodes, err)
	}
}

// kubelet refuses each of these starts.
func TestMigration(t *testing.T) {
	dir := t.TempDir()
	m, _, err := start(t, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admit(t, m, "a", "3Gi"); err != nil {
		t.Fatal(err)
	}
	m, log, err := start(t, dir, func(c *Config) { c.Machine.Nodes[1].Memory = 8 << 30 })
	if err != nil || log != "" || len(m.Assigned("a", "app")) != 1 {
		t.Errorf("more memory: %v, log %q, error %v", m.Assigned("a", "app"), log, err)
	}
	m, log, err = start(t, dir, func(c *Config) { c.Machine.Nodes[0].Memory = 2 << 30 })
	if err != nil || !strings.Contains(log, "not reserved any more") || len(m.Assigned("a", "app")) != 0 {
		t.Errorf("less memory: %v, log %q, error %v", m.Assigned("a", "app"), log, err)
	}
	if _, _, err = start(t, dir, func(c *Config) { c.Policy = "None" }); err != nil {
		t.Error(err)
	}
	if _, _, err = start(t, dir, nil); err != nil {
		t.Error(err)
	}
}

func TestConfigurationErrors(t *testing.T) {
	for want, change := range map[string]func(*Config){
		`unknown policy: "static"`: func(c *Config) { c.Policy = "static" },
		"the reserved memory configuration references a NUMA node 7 that does not exist on this machine": func(c *Config) { c.ReservedMemory[0].NumaNode = 7 },
		`the total amount "1Gi" of type "memory" is not equal to the value "2Gi" determined by Node Allocatable feature`: func(c *Config) {
			c.Reserved[corev1.ResourceMemory] = resource.MustParse("2Gi")
		},
		"[memorymanager] you should specify the system reserved memory": func(c *Config) { c.Reserved, c.ReservedMemory = nil, nil },
	} {
		if _, _, err := start(t, t.TempDir(), change); err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}
