// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podconditions finds conditions in the status of a pod, for the API server, the controllers and the node. Its functions are pure
// and safe for concurrent use.
package podconditions

import corev1 "k8s.io/api/core/v1"

// Find returns the condition of a type, nil if there is none. It points into the slice.
func Find(conditions []corev1.PodCondition, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range conditions {
		if conditions[i].Type == t {
			return &conditions[i]
		}
	}
	return nil
}

// IsReady reports whether the pod's Ready condition is true.
func IsReady(pod *corev1.Pod) bool {
	c := Find(pod.Status.Conditions, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}
