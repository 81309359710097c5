// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podworkers

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/static"
)

// TestPodIsReplacedUnnoticed: a pod that was deleted, and made again, while the node did not hear the API server ends, and who asks for the
// name reaches the new one.
func TestPodIsReplacedUnnoticed(t *testing.T) {
	named := func(uid types.UID) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: uid}}
	}
	mirrors := static.New(static.Config{Kubelet: kubeletconfig.Default()})
	m := &Manager{podTable: newPodTable(nil, nil), Dependencies: Dependencies{Mirrors: mirrors}}
	for _, uid := range []types.UID{"u1", "u2"} {
		m.workers[uid] = &worker{m: m, uid: uid, wakes: make(chan struct{}, 1)}
	}
	m.PodAdded(named("u1"))
	m.PodUpdated(named("u1"), named("u1"))
	if p, err := m.FindPod(podspec.Target{Namespace: "default", Pod: "p", UID: "u1"}); err != nil || p.UID != "u1" {
		t.Fatalf("found %v, %v", p, err)
	}
	m.PodUpdated(named("u1"), named("u2"))
	if !m.workers["u1"].gone {
		t.Error("the old pod goes on")
	}
	if p, err := m.FindPod(podspec.Target{Namespace: "default", Pod: "p"}); err != nil || p.UID != "u2" {
		t.Errorf("by name: found %v, %v", p, err)
	}
	if p, err := m.FindPod(podspec.Target{Namespace: "default", Pod: "p", UID: "u1"}); err == nil {
		t.Errorf("by the old UID: found %v", p)
	}
}

// A pod that was taken out of the API server before it has ended is in no other pod's way, and has its share of the node until then.
func TestPodThatIsGoneIsNotAdmitted(t *testing.T) {
	m := &Manager{podTable: newPodTable(nil, nil)}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "u1"}}
	m.workers["u1"] = &worker{m: m, uid: "u1", wakes: make(chan struct{}, 1), entry: entry{spec: pod}}
	m.CountPod("u1")
	if admitted, counted := m.AdmittedPods(), m.CountedPods(); len(admitted) != 1 || len(counted) != 1 {
		t.Errorf("while it runs: %d admitted, %d counted", len(admitted), len(counted))
	}
	m.RemovePod(pod)
	if admitted, counted := m.AdmittedPods(), m.CountedPods(); len(admitted) != 0 || len(counted) != 1 {
		t.Errorf("when it is gone: %d admitted, %d counted", len(admitted), len(counted))
	}
}
