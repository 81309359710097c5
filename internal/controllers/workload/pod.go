// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/podconditions"
)

// Available reports whether the pod has been ready for minReadySeconds at now. When it is ready but not yet for long
// enough, wait is what remains; otherwise wait is 0.
func Available(pod *corev1.Pod, minReadySeconds int32, now time.Time) (available bool, wait time.Duration) {
	if !podconditions.IsReady(pod) {
		return false, 0
	}
	if minReadySeconds == 0 {
		return true, 0
	}
	since := readySince(pod)
	if since.IsZero() {
		return false, 0
	}
	if rest := since.Add(time.Duration(minReadySeconds) * time.Second).Sub(now); rest > 0 {
		return false, rest
	}
	return true, 0
}

// readySince returns when the Ready condition of a pod that has one last changed.
func readySince(pod *corev1.Pod) metav1.Time {
	return podconditions.Find(pod.Status.Conditions, corev1.PodReady).LastTransitionTime
}

// NextAvailable is how long after now the first of pods becomes available that is not yet; 0 when none will by itself.
func NextAvailable(pods []*corev1.Pod, minReadySeconds int32, now time.Time) time.Duration {
	var next time.Duration
	for _, pod := range pods {
		if _, wait := Available(pod, minReadySeconds, now); wait > 0 && (next == 0 || wait < next) {
			next = wait
		}
	}
	return next
}

// Finished reports whether the pod has succeeded or failed.
func Finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Active reports whether the pod counts as one of its owner's replicas.
func Active(pod *corev1.Pod) bool { return !Finished(pod) && pod.DeletionTimestamp == nil }

// Terminating reports whether the pod is being deleted and has not stopped.
func Terminating(pod *corev1.Pod) bool { return !Finished(pod) && pod.DeletionTimestamp != nil }

// Filter returns the pods for which keep returns true.
func Filter(pods []*corev1.Pod, keep func(*corev1.Pod) bool) []*corev1.Pod {
	var kept []*corev1.Pod
	for _, pod := range pods {
		if keep(pod) {
			kept = append(kept, pod)
		}
	}
	return kept
}

// Controlled reports whether owner is the managing owner of o.
func Controlled(o, owner metav1.Object) bool {
	ref := metav1.GetControllerOfNoCopy(o)
	return ref != nil && ref.UID == owner.GetUID()
}
