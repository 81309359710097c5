// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/decide"
)

// endContainers sets the terminated state of containers that are gone. Containers whose end was not observed count as failed.
// observed count as failed.
func endContainers(in Input, out *corev1.PodStatus) {
	if wasInitialized(in.Pod) {
		unseen(out.ContainerStatuses)
	}
	unseen(attempted(out.InitContainerStatuses))
}

// unseen sets the termination of the containers without one.
func unseen(statuses []corev1.ContainerStatus) {
	for i := range statuses {
		if statuses[i].State.Terminated == nil {
			statuses[i].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				Reason: gone, Message: "The container could not be located when the pod was terminated", ExitCode: 137,
			}}
		}
	}
}

// wasInitialized reports whether the last status shows that the regular containers could start.
func wasInitialized(pod *corev1.Pod) bool {
	if len(pod.Spec.InitContainers) == 0 {
		return true
	}
	for _, s := range pod.Status.ContainerStatuses {
		if s.State.Waiting == nil || s.LastTerminationState.Terminated != nil {
			return true
		}
	}
	last := &pod.Spec.InitContainers[len(pod.Spec.InitContainers)-1]
	s, known := byName(pod.Status.InitContainerStatuses)[last.Name]
	if !known {
		return false
	}
	if decide.Sidecar(last) {
		return s.State.Running != nil && s.Started != nil && *s.Started
	}
	for _, end := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
		if end != nil && end.ExitCode == 0 {
			return true
		}
	}
	return false
}

// attempted returns the init containers up to the last one that has ever started; the first if none has.
func attempted(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	for i := len(statuses) - 1; i > 0; i-- {
		if statuses[i].State.Waiting == nil || statuses[i].LastTerminationState.Terminated != nil {
			return statuses[:i+1]
		}
	}
	return statuses[:min(1, len(statuses))]
}
