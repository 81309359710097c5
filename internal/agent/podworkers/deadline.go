// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podworkers

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

func pastDeadline(pod *corev1.Pod, now time.Time) bool {
	return pod.Spec.ActiveDeadlineSeconds != nil && pod.Status.StartTime != nil && untilDeadline(pod, now) <= 0
}

func untilDeadline(pod *corev1.Pod, now time.Time) time.Duration {
	if pod.Spec.ActiveDeadlineSeconds == nil || pod.Status.StartTime == nil {
		return 0
	}
	return pod.Status.StartTime.Add(time.Duration(*pod.Spec.ActiveDeadlineSeconds) * time.Second).Sub(now)
}
