// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/mortise-dev/mortise/resource"
)

// oneNode is a backend that has a node.
type oneNode struct{ resource.Backend }

func (oneNode) Get(context.Context, schema.GroupResource, string, string) (resource.Object, error) {
	return nodeNamed("one", corev1.ConditionTrue), nil
}

// TestKnown: what is known at once is what a client gets, and only while that would not have the nodes measured.
func TestKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(123 * time.Millisecond)
		s := New(Options{Local: &nodesOf{}})
		defer s.Close()
		pod := func(name, node string, phase corev1.PodPhase) *corev1.Pod {
			return &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"app": name}},
				Spec:       corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase},
			}
		}
		pods := []*corev1.Pod{
			pod("unmeasured", "one", corev1.PodRunning), pod("done", "two", corev1.PodSucceeded), pod("waits", "", corev1.PodPending),
			pod("web", "one", corev1.PodRunning),
		}
		if s.Known(pods) != nil {
			t.Error("the usage is known before the node was measured")
		}
		var sources []resource.Object
		for _, p := range pods {
			sources = append(sources, p)
		}
		objs, err := s.podMetrics(t.Context(), oneNode{}, sources)
		if err != nil || len(objs) != 1 {
			t.Fatalf("%d answers, %v", len(objs), err)
		}
		text, err := json.Marshal(objs[0])
		if err != nil {
			t.Fatal(err)
		}
		var want metricsv1beta1.PodMetrics
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatal(err)
		}
		got := s.Known(pods)
		if got == nil || len(got.Items) != 1 {
			t.Fatalf("known: %v", got)
		}
		want.CreationTimestamp = got.Items[0].CreationTimestamp
		equal := cmp.Comparer(func(a, b corev1.ResourceList) bool {
			return a.Cpu().Cmp(*b.Cpu()) == 0 && a.Memory().Cmp(*b.Memory()) == 0
		})
		if d := cmp.Diff(want, got.Items[0], equal); d != "" {
			t.Error(d)
		}
		if others := s.Known(append(pods, pod("web", "two", corev1.PodRunning))); others != nil {
			t.Errorf("the usage is known without that of a node: %v", others)
		}
		if none := s.Known(pods[1:3]); none == nil || len(none.Items) > 0 {
			t.Errorf("pods without a node use %v", none)
		}
		time.Sleep(resolution)
		if s.Known(pods) != nil {
			t.Error("the usage is known although the measurement is too old")
		}
	})
}
