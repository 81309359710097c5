// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/static"
)

// TestPodIsReplacedUnnoticed: a pod that was deleted, and made again, while the node did not hear the API server ends, and who asks for the
// name reaches the new one.
func TestPodIsReplacedUnnoticed(t *testing.T) {
	named := func(uid types.UID) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: uid}}
	}
	n := &node{podTable: newPodTable(nil, nil), static: static.New(static.Config{Kubelet: Effective(nil)})}
	for _, uid := range []types.UID{"u1", "u2"} {
		n.workers[uid] = &worker{n: n, uid: uid, wakes: make(chan struct{}, 1)}
	}
	n.podTold(named("u1"))
	n.podChanged(named("u1"), named("u1"))
	if p, err := n.FindPod(podspec.Target{Namespace: "default", Pod: "p", UID: "u1"}); err != nil || p.UID != "u1" {
		t.Fatalf("found %v, %v", p, err)
	}
	n.podChanged(named("u1"), named("u2"))
	if !n.workers["u1"].gone {
		t.Error("the old pod goes on")
	}
	if p, err := n.FindPod(podspec.Target{Namespace: "default", Pod: "p"}); err != nil || p.UID != "u2" {
		t.Errorf("by name: found %v, %v", p, err)
	}
	if p, err := n.FindPod(podspec.Target{Namespace: "default", Pod: "p", UID: "u1"}); err == nil {
		t.Errorf("by the old UID: found %v", p)
	}
}
