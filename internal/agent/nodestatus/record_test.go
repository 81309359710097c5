// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/allocatable"
	"github.com/mortise-dev/mortise/internal/agent/cni"
	"github.com/mortise-dev/mortise/internal/agent/hardware"
	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
)

// record is one that is missing until it is begun; resources are of the plug-ins that have registered.
type record struct {
	begun     bool
	resources corev1.ResourceList
}

func (r *record) Missing() bool { return !r.begun }

func (r *record) Begin() error { r.begun = true; return nil }

func (r *record) Capacity() (capacity, allocatable corev1.ResourceList) {
	return r.resources, r.resources
}

// A machine without a record of plug-ins' resources sets those of its Node to zero when it registers, once: a former machine, or a plug-in
// that is gone, had them. What registers later and what other clients add counts.
func TestExtendedResourcesWithoutRecord(t *testing.T) {
	const gone, here = "example.com/gone", "example.com/here"
	ctx := t.Context()
	runtime := startRuntime(t)
	two := corev1.ResourceList{gone: resource.MustParse("2"), here: resource.MustParse("2")}
	client := fake.NewClientset(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{Capacity: two, Allocatable: two},
	})
	kept := &record{resources: corev1.ResourceList{here: resource.MustParse("1")}}
	m := New(Config{
		Client: client, Runtime: runtime, Addresses: addresses{"10.0.0.1"}, Images: images{}, Kubelet: kubeletconfig.Default(),
		Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler), NodeName: "n1", Port: 10250, Network: cni.Options{Dir: "-"},
		Resources: allocatable.Node{Machine: hardware.Machine{CPUs: 2, Memory: 1 << 30}, MaxPods: 7}, Plugins: kept, Record: kept,
	})
	registered := func(name corev1.ResourceName, want int64) {
		t.Helper()
		if err := m.Register(ctx); err != nil {
			t.Fatal(err)
		}
		node, err := client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		all, free := node.Status.Capacity[name], node.Status.Allocatable[name]
		if all.Value() != want || free.Value() != want {
			t.Errorf("%s: capacity %s, allocatable %s, want %d", name, all.String(), free.String(), want)
		}
	}
	registered(gone, 0)
	registered(here, 1)
	if !kept.begun {
		t.Error("the record is not begun")
	}
	node, err := client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Capacity[gone] = resource.MustParse("3")
	if _, err := client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	registered(gone, 3)
}
