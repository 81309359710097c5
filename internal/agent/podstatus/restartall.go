// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/decide"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// anew is the waiting reason of containers while all containers of the pod restart.
const anew = "RestartingAllContainers"

// startsAnew reports whether all containers of the pod restart: by the runtime's state, or by the last status.
func startsAnew(in Input, state *podstate.Pod) bool {
	if decide.StartsAnew(in.Pod, state) {
		return true
	}
	old := byName(slices.Concat(in.Pod.Status.InitContainerStatuses, in.Pod.Status.ContainerStatuses))
	return slices.ContainsFunc(slices.Concat(in.Pod.Spec.InitContainers, in.Pod.Spec.Containers), func(c corev1.Container) bool {
		t := old[c.Name].State.Terminated
		return t != nil && decide.TakesAll(&c, t.ExitCode)
	})
}

// restartingAll returns the condition of a pod whose rules may restart all containers.
func restartingAll(in Input, state *podstate.Pod, phase corev1.PodPhase) corev1.PodCondition {
	out := corev1.PodCondition{Type: corev1.AllContainersRestarting, Status: corev1.ConditionFalse}
	there := slices.ContainsFunc(slices.Concat(in.Pod.Spec.InitContainers, in.Pod.Spec.Containers),
		func(c corev1.Container) bool { return state.Newest(c.Name) != nil })
	switch {
	case phase == corev1.PodSucceeded:
		out.Reason = "PodCompleted"
	case phase == corev1.PodFailed:
		out.Reason = "PodFailed"
	case there && startsAnew(in, state):
		out.Status, out.Reason, out.Message = corev1.ConditionTrue, "RestartAllContainersStarted", "container exited with restart policy rule"
	}
	return out
}
