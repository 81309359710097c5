// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/decide"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// anew is why a container of a pod whose containers all begin again is not there.
const anew = "RestartingAllContainers"

// startsAnew says whether all containers of the pod begin again: by what the runtime has, or by what was said of it last.
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

// restartingAll is the condition of a pod whose containers may all begin again.
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
