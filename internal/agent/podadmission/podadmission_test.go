// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podadmission

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/agent/allocatable"
	"github.com/mortise-dev/mortise/internal/agent/hardware"
)

// node is a node with pods.
type node struct {
	pods    []*corev1.Pod
	refuses string
}

func (n *node) CountedPods() []*corev1.Pod     { return n.pods }
func (n *node) Node() *corev1.Node             { return &corev1.Node{} }
func (n *node) SupplementalGroupsPolicy() bool { return false }
func (n *node) Refusal() string                { return n.refuses }

func TestRejections(t *testing.T) {
	node := &node{refuses: "the end"}
	m := New(Config{Pods: node, Status: node, Shutdown: node, Resources: allocatable.Node{MaxPods: 1}})
	for want, spec := range map[string]corev1.PodSpec{
		"PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS": {OS: &corev1.PodOS{Name: corev1.Windows}},
		"SupplementalGroupsPolicyNotSupported: SupplementalGroupsPolicy=Strict is not supported in this node": {
			SecurityContext: &corev1.PodSecurityContext{SupplementalGroupsPolicy: new(corev1.SupplementalGroupsPolicyStrict)},
		},
		"NodeShutdown: the end": {},
	} {
		if err := m.Admit(&corev1.Pod{Spec: spec}); err == nil || err.Error() != want {
			t.Errorf("%v, not %s", err, want)
		}
	}
	// A pod does not stand in its own way.
	node.pods = []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{UID: "a"}}}
	if err := m.Fits(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a"}}); err != nil {
		t.Error(err)
	}
	if err := m.Fits(&corev1.Pod{}); err == nil || !strings.HasPrefix(err.Error(), "OutOfpods: ") {
		t.Errorf("one pod too many: %v", err)
	}
}

// What does not fit is refused in kubelet's words, huge pages and disk too.
func TestFits(t *testing.T) {
	machine := hardware.Machine{CPUs: 2, Memory: 4 << 30, Disk: 1 << 30, HugePages: []hardware.HugePages{{Size: 2 << 20, Total: 8 << 20}}}
	node := &node{}
	m := New(Config{Pods: node, Status: node, Shutdown: node, Resources: allocatable.Node{Machine: machine, MaxPods: 10}})
	pod := func(name corev1.ResourceName, much string) *corev1.Pod {
		list := corev1.ResourceList{name: resource.MustParse(much)}
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: list}}}}}
	}
	other := pod("hugepages-2Mi", "6Mi")
	other.UID = "other"
	node.pods = []*corev1.Pod{other}
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
			if err := m.Fits(want.pod); err != nil {
				got = err.Error()
			}
			if got != want.err {
				t.Errorf("%s\nnot %s", got, want.err)
			}
		})
	}
}
