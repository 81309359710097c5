// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podconditions_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/podconditions"
)

func TestIsReady(t *testing.T) {
	for want, conditions := range map[bool][][]corev1.PodCondition{
		true:  {{{Type: corev1.PodScheduled}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		false: {nil, {{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}}, {{Type: corev1.PodReady, Status: corev1.ConditionUnknown}}},
	} {
		for _, of := range conditions {
			if got := podconditions.IsReady(&corev1.Pod{Status: corev1.PodStatus{Conditions: of}}); got != want {
				t.Errorf("IsReady with %v: %v", of, got)
			}
		}
	}
}

// TestFind: what is found can be changed in its place.
func TestFind(t *testing.T) {
	conditions := []corev1.PodCondition{{Type: corev1.PodScheduled}, {Type: corev1.PodReady}}
	podconditions.Find(conditions, corev1.PodReady).Reason = "Here"
	if conditions[1].Reason != "Here" || podconditions.Find(conditions, corev1.PodInitialized) != nil {
		t.Errorf("conditions %v", conditions)
	}
}
