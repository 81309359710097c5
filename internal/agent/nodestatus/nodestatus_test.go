// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/api/config/v1alpha1"
	"github.com/mortise-dev/mortise/internal/agent/allocatable"
	"github.com/mortise-dev/mortise/internal/agent/cni"
	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/cri/fakecri"
	"github.com/mortise-dev/mortise/internal/agent/hardware"
	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
)

type addresses []string

func (a addresses) Texts() []string { return a }

type images []corev1.ContainerImage

func (i images) List(context.Context) []corev1.ContainerImage { return i }

// startRuntime starts a container runtime that ends with the test.
func startRuntime(t *testing.T) *cri.Client {
	t.Helper()
	ctx := t.Context()
	r := fakecri.New(t.TempDir(), clock.RealClock{}.Now)
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	runtime, err := cri.Dial(ctx, r.Socket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { runtime.Close(context.WithoutCancel(ctx)) })
	return runtime
}

func TestWhatNeighboursReportIsInTheNode(t *testing.T) {
	ctx := t.Context()
	runtime := startRuntime(t)
	client := fake.NewClientset()
	m := New(Config{
		Client: client, Runtime: runtime, Addresses: addresses{"10.0.0.1"}, Images: images{{Names: []string{"a:1"}, SizeBytes: 7}},
		Kubelet: kubeletconfig.Default(), Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
		NodeName: "n1", Labels: map[string]string{"l": "v"}, Port: 10250, Network: cni.Options{Dir: "-"},
		Resources: allocatable.Node{Machine: hardware.Machine{CPUs: 2, Memory: 1 << 30}, MaxPods: 7},
	})
	if err := m.Register(ctx); err != nil {
		t.Fatal(err)
	}
	node, err := client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if s := node.Status; node.Labels["l"] != "v" || s.Addresses[0].Address != "10.0.0.1" || s.Capacity.Pods().Value() != 7 ||
		s.DaemonEndpoints.KubeletEndpoint.Port != 10250 || len(s.Images) != 1 || s.Images[0].SizeBytes != 7 {
		t.Errorf("node %+v", node)
	}
	if _, err := client.CoordinationV1().Leases(leaseNamespace).Get(ctx, "n1", metav1.GetOptions{}); err != nil {
		t.Errorf("lease: %v", err)
	}

	// resyncs reports whether the heartbeat was asked to look.
	resyncs := func() bool {
		select {
		case <-m.changed:
			return true
		default:
			return false
		}
	}
	conditions := func() map[corev1.NodeConditionType]string {
		out := map[corev1.NodeConditionType]string{}
		for _, c := range m.initial().Status.Conditions {
			out[c.Type] = string(c.Status) + " " + c.Reason + " " + c.Message
		}
		return out
	}
	m.SetPressure(nil)
	if resyncs() {
		t.Error("the heartbeat looks though nothing has changed")
	}
	m.SetPressure([]corev1.NodeConditionType{corev1.NodeDiskPressure})
	if got := conditions(); !resyncs() || got[corev1.NodeDiskPressure] != "True KubeletHasDiskPressure kubelet has disk pressure" ||
		got[corev1.NodeReady] != "True KubeletReady kubelet is posting ready status" {
		t.Errorf("under pressure: %v", got)
	}
	m.SetShuttingDown()
	if got := conditions(); !resyncs() || got[corev1.NodeReady] != "False KubeletNotReady node is shutting down" {
		t.Errorf("in a shutdown: %v", got)
	}
	if ready, why := m.NetworkReady(); !ready {
		t.Errorf("the runtime: %s", why)
	}
	if _, ok := conditions()[v1alpha1.FencedCondition]; ok {
		t.Error("a node that nobody has fenced has the condition")
	}
	fenced := m.initial()
	fenced.Status.Conditions = append(fenced.Status.Conditions,
		corev1.NodeCondition{Type: v1alpha1.FencedCondition, Status: corev1.ConditionTrue})
	for _, c := range m.updated(fenced).Status.Conditions {
		if c.Type == v1alpha1.FencedCondition && c.Status != corev1.ConditionFalse {
			t.Errorf("the node runs: %v", c)
		}
	}
}
