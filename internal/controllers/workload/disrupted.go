// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Disrupted is the strategic merge patch of a pod's status that says why the pod is about to be deleted; nil when it says so
// already. Owners tell by it that the pod did not fail by itself. A phase is set too if it is not empty.
func Disrupted(pod *corev1.Pod, reason, message string, phase corev1.PodPhase, now time.Time) ([]byte, error) {
	is := corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now),
	}
	if pod.Status.ObservedGeneration != 0 {
		is.ObservedGeneration = pod.Generation
	}
	status := map[string]any{}
	if was := Condition(pod, corev1.DisruptionTarget); was == nil || was.Status != is.Status || was.Reason != reason || was.Message != message {
		if was != nil && was.Status == is.Status {
			is.LastTransitionTime = was.LastTransitionTime
		}
		status["conditions"] = []corev1.PodCondition{is}
	}
	if phase != "" && pod.Status.Phase != phase {
		status["phase"] = phase
	}
	if len(status) == 0 {
		return nil, nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return nil, fmt.Errorf("encode patch: %w", err)
	}
	return patch, nil
}
