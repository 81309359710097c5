// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package clusterdoctor

import (
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDiagnoseStart: who waits for whom when nodes do not start.
func TestDiagnoseStart(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	node := func(name, providerID string, ready, tainted bool) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: providerID}}
		status := corev1.ConditionFalse
		if ready {
			status = corev1.ConditionTrue
		}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
		if tainted {
			n.Spec.Taints = []corev1.Taint{{Key: uninitialized, Value: "true", Effect: corev1.TaintEffectNoSchedule}}
		}
		return n
	}
	pod := func(name string, host bool, tolerations ...corev1.Toleration) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name},
			Spec: corev1.PodSpec{HostNetwork: host, Tolerations: tolerations}}
	}
	lease := func(age time.Duration) *coordinationv1.Lease {
		at := metav1.NewMicroTime(now.Add(-age))
		return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("x"), LeaseDurationSeconds: new(int32(15)), RenewTime: &at,
		}}
	}
	every := corev1.Toleration{Operator: corev1.TolerationOpExists}
	notReady := corev1.Toleration{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists}
	cloud := corev1.Toleration{Key: uninitialized, Value: "true", Effect: corev1.TaintEffectNoSchedule}
	for _, c := range []struct {
		name  string
		nodes []corev1.Node
		pods  []corev1.Pod
		lease *coordinationv1.Lease
		want  []string // a part of each finding
	}{
		{"no cloud", []corev1.Node{node("a", "", true, false)}, nil, nil, nil},
		{"all is well", []corev1.Node{node("a", "x://a", true, false)}, nil, lease(time.Second), nil},
		{"no controller manager", []corev1.Node{node("a", "", true, true)}, nil, lease(time.Minute),
			[]string{"start the cloud's controller manager"}},
		{"it runs", []corev1.Node{node("a", "", true, true)}, nil, lease(time.Second), []string{"see what it logs"}},
		{"a node without the taint", []corev1.Node{node("a", "x://a", true, false), node("b", "", true, false)}, nil, nil,
			[]string{"node b: neither a providerID nor the taint"}},
		{"a controller manager that waits", []corev1.Node{node("a", "", true, true)},
			[]corev1.Pod{pod("cloud-controller-1", false, notReady)}, nil, []string{"start the cloud's", "does not tolerate " + uninitialized}},
		{"a network that waits", []corev1.Node{node("a", "", false, true)}, []corev1.Pod{pod("cni", true, cloud)}, lease(time.Second),
			[]string{"see what it logs", "does not tolerate node.kubernetes.io/not-ready"}},
		{"pods that tolerate, and others", []corev1.Node{node("a", "", false, true)}, []corev1.Pod{pod("cni", true, every), pod("web", false)},
			lease(time.Second), []string{"see what it logs"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := diagnoseStart(c.nodes, c.pods, c.lease, now)
			if len(got) != len(c.want) {
				t.Fatalf("found %v, want %q", got, c.want)
			}
			for i, s := range got {
				if text := string(s.State) + " " + s.What + " " + s.Do; !strings.Contains(text, c.want[i]) {
					t.Errorf("found %q, want %q", text, c.want[i])
				}
			}
		})
	}
}
