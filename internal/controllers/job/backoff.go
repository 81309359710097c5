// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package job

import (
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/podconditions"
)

const (
	backOffBase = 10 * time.Second
	backOffMost = 10 * time.Minute
)

// history records a job's failures: how many there were since the last success, and when the last was. Each sync passes it to the next,
// since counted pods may be deleted.
type history struct {
	failures int
	last     time.Time
}

// after returns the history with more finished pods.
func (r history) after(succeeded, failed []*corev1.Pod) history {
	var success time.Time
	for _, pod := range succeeded {
		if t := finished(pod); t.After(success) {
			success = t
		}
	}
	if len(succeeded) > 0 {
		r = history{}
	}
	for _, pod := range failed {
		t := finished(pod)
		if len(succeeded) > 0 && !t.After(success) {
			continue
		}
		r.failures++
		if t.After(r.last) {
			r.last = t
		}
	}
	return r
}

// wait returns how long after now the next pod may be created: ten seconds after a failure, doubling with each further one, up to ten
// minutes.
func (r history) wait(now time.Time) time.Duration {
	if r.failures == 0 {
		return 0
	}
	most := backOffMost
	if r.failures < 8 {
		most = min(backOffBase<<(r.failures-1), backOffMost)
	}
	return max(r.last.Add(most).Sub(now), 0)
}

// recordOfIndex returns the history of one index, given its last failed pod; an empty history if pod is nil.
func recordOfIndex(pod *corev1.Pod) history {
	if pod == nil {
		return history{}
	}
	return history{failures: failuresOf(pod) + ignoredFailuresOf(pod) + 1, last: finished(pod)}
}

// failuresOf returns how many pods of the pod's index had failed before it, by the pod's own annotation.
func failuresOf(pod *corev1.Pod) int { return number(pod, batchv1.JobIndexFailureCountAnnotation) }

func ignoredFailuresOf(pod *corev1.Pod) int {
	return number(pod, batchv1.JobIndexIgnoredFailureCountAnnotation)
}

func number(pod *corev1.Pod, annotation string) int {
	n, err := strconv.ParseInt(pod.Annotations[annotation], 10, 32)
	if err != nil || n < 0 {
		return 0
	}
	return int(n)
}

// finished returns when a pod ended: its last container, or when it stopped being ready, or when it was deleted.
func finished(pod *corev1.Pod) time.Time {
	if last := containersEnded(pod); !last.IsZero() {
		return last
	}
	c := podconditions.Find(pod.Status.Conditions, corev1.PodReady)
	if c != nil && c.Status == corev1.ConditionFalse && !c.LastTransitionTime.IsZero() {
		return c.LastTransitionTime.Time
	}
	if pod.DeletionTimestamp != nil {
		var grace int64
		if pod.DeletionGracePeriodSeconds != nil {
			grace = *pod.DeletionGracePeriodSeconds
		}
		return pod.DeletionTimestamp.Add(-time.Duration(grace) * time.Second)
	}
	return pod.CreationTimestamp.Time
}

// containersEnded returns when the last container ended, sidecars included; zero if one has not ended.
func containersEnded(pod *corev1.Pod) time.Time {
	var last time.Time
	see := func(s corev1.ContainerStatus) bool {
		if s.State.Terminated == nil || s.State.Terminated.FinishedAt.IsZero() {
			return false
		}
		if t := s.State.Terminated.FinishedAt.Time; t.After(last) {
			last = t
		}
		return true
	}
	for _, s := range pod.Status.ContainerStatuses {
		if !see(s) {
			return time.Time{}
		}
	}
	for _, s := range pod.Status.InitContainerStatuses {
		sidecar := slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool {
			return c.Name == s.Name && c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		})
		if sidecar && !see(s) {
			return time.Time{}
		}
	}
	return last
}
