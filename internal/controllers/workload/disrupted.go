// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/podconditions"
)

// Disrupted returns the strategic merge patch that adds the condition DisruptionTarget to a pod that is about to be deleted; nil if the pod
// has the condition already. The condition tells owners that the pod did not fail by itself. generation is the pod's observed generation;
// 0: none.
func Disrupted(pod *corev1.Pod, reason, message string, generation int64, now time.Time) ([]byte, error) {
	is := corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now),
		ObservedGeneration: generation,
	}
	was := podconditions.Find(pod.Status.Conditions, corev1.DisruptionTarget)
	if was != nil && was.Status == is.Status {
		if was.Reason == reason && was.Message == message {
			return nil, nil
		}
		is.LastTransitionTime = was.LastTransitionTime
	}
	status := map[string]any{"conditions": []corev1.PodCondition{is}, "$setElementOrder/conditions": ConditionOrder(pod, is.Type)}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return nil, fmt.Errorf("encode patch: %w", err)
	}
	return patch, nil
}

// ConditionOrder returns the element order for a strategic merge patch of a pod's conditions, with a new one at the end.
func ConditionOrder(pod *corev1.Pod, with corev1.PodConditionType) []map[string]corev1.PodConditionType {
	var types []map[string]corev1.PodConditionType
	for _, c := range pod.Status.Conditions {
		types = append(types, map[string]corev1.PodConditionType{"type": c.Type})
	}
	if podconditions.Find(pod.Status.Conditions, with) == nil {
		types = append(types, map[string]corev1.PodConditionType{"type": with})
	}
	return types
}
