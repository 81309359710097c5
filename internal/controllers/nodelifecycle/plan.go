// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodelifecycle

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/api/config/v1alpha1"
)

func condition(conditions []corev1.NodeCondition, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range conditions {
		if conditions[i].Type == kind {
			return &conditions[i]
		}
	}
	return nil
}

// deadline returns when a node counts as lost, given its last heartbeat. A node that never reported has a longer grace period.
func (s settings) deadline(node *corev1.Node, heard time.Time) time.Time {
	if condition(node.Status.Conditions, corev1.NodeReady) == nil {
		return heard.Add(s.startupGrace)
	}
	return heard.Add(s.grace)
}

// silenced returns the conditions of a node that reports no more.
func silenced(node *corev1.Node, now time.Time) []corev1.NodeCondition {
	conditions := slices.Clone(node.Status.Conditions)
	for _, kind := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure,
		corev1.NodePIDPressure} {
		c := condition(conditions, kind)
		switch {
		case c == nil:
			conditions = append(conditions, corev1.NodeCondition{
				Type: kind, Status: corev1.ConditionUnknown, Reason: "NodeStatusNeverUpdated", Message: "Kubelet never posted node status.",
				LastHeartbeatTime: node.CreationTimestamp, LastTransitionTime: metav1.NewTime(now),
			})
		case c.Status != corev1.ConditionUnknown:
			c.Status, c.Reason, c.Message = corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status."
			c.LastTransitionTime = metav1.NewTime(now)
		}
	}
	return conditions
}

// byCondition are the taints for conditions.
var byCondition = []struct {
	kind   corev1.NodeConditionType
	status corev1.ConditionStatus
	key    string
}{
	{corev1.NodeReady, corev1.ConditionFalse, corev1.TaintNodeNotReady},
	{corev1.NodeReady, corev1.ConditionUnknown, corev1.TaintNodeUnreachable},
	{corev1.NodeMemoryPressure, corev1.ConditionTrue, corev1.TaintNodeMemoryPressure},
	{corev1.NodeDiskPressure, corev1.ConditionTrue, corev1.TaintNodeDiskPressure},
	{corev1.NodeNetworkUnavailable, corev1.ConditionTrue, corev1.TaintNodeNetworkUnavailable},
	{corev1.NodePIDPressure, corev1.ConditionTrue, corev1.TaintNodePIDPressure},
}

// fleeing returns the taint that evicts pods from a node whose Ready condition has that status; "" for none.
func fleeing(status corev1.ConditionStatus) string {
	switch status {
	case corev1.ConditionFalse:
		return corev1.TaintNodeNotReady
	case corev1.ConditionUnknown:
		return corev1.TaintNodeUnreachable
	}
	return ""
}

// readiness returns the status of a node's Ready condition; "" if it has none.
func readiness(node *corev1.Node) corev1.ConditionStatus {
	if c := condition(node.Status.Conditions, corev1.NodeReady); c != nil {
		return c.Status
	}
	return ""
}

// fled returns the key of the node's taint that evicts pods because the node is not ready; "" if it has none.
func fled(node *corev1.Node) string {
	for _, t := range node.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoExecute && (t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable) {
			return t.Key
		}
	}
	return ""
}

// taints returns a node's taints after updating those for its conditions: NoSchedule for each, and NoExecute for a node that is not ready
// or unreachable, if flee is set. Other taints are unchanged.
func taints(node *corev1.Node, flee bool, now time.Time) []corev1.Taint {
	type id struct {
		key    string
		effect corev1.TaintEffect
	}
	want, ours := map[id]bool{}, map[id]bool{}
	var order []id
	add := func(key string, effect corev1.TaintEffect, wanted bool) {
		ours[id{key, effect}] = true
		if wanted && !want[id{key, effect}] {
			want[id{key, effect}] = true
			order = append(order, id{key, effect})
		}
	}
	for _, t := range byCondition {
		c := condition(node.Status.Conditions, t.kind)
		met := c != nil && c.Status == t.status
		if t.kind == corev1.NodeReady { // first, as upstream does where one of the two replaces the other
			add(t.key, corev1.TaintEffectNoExecute, met && flee)
		}
		add(t.key, corev1.TaintEffectNoSchedule, met)
	}
	// A node that has never reported as ready keeps the taint that it registered with.
	if condition(node.Status.Conditions, corev1.NodeReady) == nil {
		delete(ours, id{corev1.TaintNodeNotReady, corev1.TaintEffectNoSchedule})
	}
	add(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule, node.Spec.Unschedulable)
	// Without the condition, the taint is an administrator's.
	if c := condition(node.Status.Conditions, v1alpha1.FencedCondition); c != nil {
		ready := condition(node.Status.Conditions, corev1.NodeReady)
		add(corev1.TaintNodeOutOfService, corev1.TaintEffectNoExecute,
			c.Status == corev1.ConditionTrue && ready != nil && ready.Status != corev1.ConditionTrue)
	}
	var result []corev1.Taint
	for _, t := range node.Spec.Taints {
		k := id{t.Key, t.Effect}
		if !ours[k] || want[k] {
			result = append(result, t)
			delete(want, k)
		}
	}
	for _, k := range order {
		if want[k] {
			at := metav1.NewTime(now)
			result = append(result, corev1.Taint{Key: k.key, Effect: k.effect, TimeAdded: &at})
		}
	}
	return result
}

// oldLabels returns the labels with deprecated names that a node lacks, or has with another value.
func oldLabels(labels map[string]string) map[string]string {
	missing := map[string]string{}
	for now, old := range map[string]string{corev1.LabelOSStable: "beta.kubernetes.io/os", corev1.LabelArchStable: "beta.kubernetes.io/arch"} {
		if value, ok := labels[now]; ok {
			if was, ok := labels[old]; !ok || was != value {
				missing[old] = value
			}
		}
	}
	return missing
}
