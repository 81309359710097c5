// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/decide"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/podconditions"
)

// count is the number of containers in each state, for the phase.
type count struct {
	pendingInit, pendingSidecar, failedInit            int
	unknown, running, waiting, stopped, over, succeded int
}

// phase derives the pod's phase from its containers' states.
func phase(pod *corev1.Pod, status *corev1.PodStatus, terminal, initialized bool) corev1.PodPhase {
	var n count
	inits := byName(status.InitContainerStatuses)
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if s, ok := inits[c.Name]; decide.Sidecar(c) {
			n.sidecar(s, ok)
		} else {
			n.init(pod, c, s, ok)
		}
	}
	regulars := byName(status.ContainerStatuses)
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		s, ok := regulars[c.Name]
		n.regular(pod, c, s, ok)
	}
	switch {
	case n.failedInit > 0:
		return corev1.PodFailed
	case n.pendingInit > 0 || n.pendingSidecar > 0 && !initialized || n.waiting > 0:
		return corev1.PodPending
	case n.running > 0 && n.unknown == 0:
		return corev1.PodRunning
	case n.running == 0 && n.stopped > 0 && n.unknown == 0:
		switch {
		case !terminal && n.stopped != n.over:
			return corev1.PodRunning
		case n.stopped == n.succeded:
			return corev1.PodSucceeded
		}
		return corev1.PodFailed
	}
	return corev1.PodPending
}

func (n *count) init(pod *corev1.Pod, c *corev1.Container, s corev1.ContainerStatus, ok bool) {
	t := s.State.Terminated
	if ok && s.State.Waiting != nil {
		t = s.LastTerminationState.Terminated
	}
	switch {
	case !ok || t == nil:
		n.pendingInit++
	case t.ExitCode != 0:
		if !decide.ShouldRestart(pod, c, t.ExitCode) && t.Reason != anew {
			n.failedInit++
		} else if s.State.Waiting != nil || s.State.Terminated != nil {
			n.pendingInit++
		}
	case s.State.Waiting != nil:
		// It succeeded before and must run again, in a new sandbox.
		n.pendingInit++
	}
}

func (n *count) sidecar(s corev1.ContainerStatus, ok bool) {
	switch {
	case !ok:
		n.unknown++
	case s.State.Running != nil:
		if s.Started == nil || !*s.Started {
			n.pendingSidecar++
		}
		n.running++
	case s.State.Terminated != nil:
	case s.State.Waiting != nil:
		if s.LastTerminationState.Terminated == nil {
			n.pendingSidecar++
			n.waiting++
		}
	default:
		n.pendingSidecar++
		n.unknown++
	}
}

func (n *count) regular(pod *corev1.Pod, c *corev1.Container, s corev1.ContainerStatus, ok bool) {
	t := s.State.Terminated
	if s.State.Waiting != nil {
		t = s.LastTerminationState.Terminated
	}
	switch {
	case !ok:
		n.unknown++
	case s.State.Running != nil:
		n.running++
	case t != nil:
		n.stopped++
		if !decide.ShouldRestart(pod, c, t.ExitCode) && t.Reason != anew {
			n.over++
		}
		if t.ExitCode == 0 && s.State.Terminated != nil {
			n.succeded++
		}
	case s.State.Waiting != nil:
		n.waiting++
	default:
		n.unknown++
	}
}

// othersConditions returns the conditions that the node does not write.
func othersConditions(all []corev1.PodCondition) []corev1.PodCondition {
	var out []corev1.PodCondition
	for _, c := range all {
		if !slices.Contains(owned, c.Type) {
			out = append(out, c)
		}
	}
	return out
}

// conditions sets the node's conditions in kubelet's order, after those of others.
func conditions(in Input, state *podstate.Pod, out *corev1.PodStatus) {
	out.Conditions = othersConditions(in.Pod.Status.Conditions)
	if d := in.Disruption; d != nil {
		own := *d
		own.ObservedGeneration, own.LastTransitionTime = in.Pod.Generation, in.Now
		if old := podconditions.Find(out.Conditions, d.Type); old == nil {
			out.Conditions = append(out.Conditions, own)
		} else if old.Status != own.Status || old.Reason != own.Reason || old.Message != own.Message {
			*old = own
		}
	}
	all := slices.Concat(out.InitContainerStatuses, out.ContainerStatuses)
	add := func(c corev1.PodCondition) {
		c.ObservedGeneration = in.Pod.Generation
		c.LastTransitionTime = in.Now
		if old := podconditions.Find(in.Pod.Status.Conditions, c.Type); old != nil && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		out.Conditions = append(out.Conditions, c)
	}
	for _, c := range in.Resizing {
		add(c)
	}
	add(sandboxed(in.Pod, state))
	add(initializedCondition(in.Pod, all, out.Phase))
	containersReady := containersReady(in.Pod, all, out.Phase)
	add(ready(in.Pod, out.Conditions, containersReady))
	add(containersReady)
	add(corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue})
	if decide.CouldTakeAll(in.Pod) {
		add(restartingAll(in, state, out.Phase))
	}
}

func sandboxed(pod *corev1.Pod, state *podstate.Pod) corev1.PodCondition {
	needed, _, reason := decide.Sandbox(pod, state)
	if !needed {
		return corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}
	}
	return corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionFalse, Reason: "PodSandboxNotReady",
		Message: reason}
}

func initializedCondition(pod *corev1.Pod, all []corev1.ContainerStatus, p corev1.PodPhase) corev1.PodCondition {
	yes := corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}
	statuses := byName(all)
	var missing, incomplete []string
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		s, ok := statuses[c.Name]
		switch {
		case !ok:
			missing = append(missing, c.Name)
		case decide.Sidecar(c) && (s.Started == nil || !*s.Started):
			incomplete = append(incomplete, c.Name)
		case !decide.Sidecar(c) && !s.Ready:
			incomplete = append(incomplete, c.Name)
		}
	}
	if p == corev1.PodSucceeded && len(missing) == 0 {
		yes.Reason = "PodCompleted"
		return yes
	}
	for _, c := range pod.Spec.Containers {
		s := statuses[c.Name]
		if s.State.Running != nil || s.State.Terminated != nil {
			return yes
		}
	}
	if message := lists("containers with unknown status", missing, "containers with incomplete status", incomplete); message != "" {
		if old := podconditions.Find(pod.Status.Conditions, corev1.PodInitialized); old != nil && old.Status == corev1.ConditionTrue {
			return yes // an initialized pod stays so, even while all its containers restart
		}
		return corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionFalse, Reason: "ContainersNotInitialized",
			Message: message}
	}
	return yes
}

func containersReady(pod *corev1.Pod, all []corev1.ContainerStatus, p corev1.PodPhase) corev1.PodCondition {
	no := corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionFalse}
	statuses := byName(all)
	var missing, unready []string
	look := func(name string) {
		if s, ok := statuses[name]; !ok {
			missing = append(missing, name)
		} else if !s.Ready {
			unready = append(unready, name)
		}
	}
	for i := range pod.Spec.InitContainers {
		if decide.Sidecar(&pod.Spec.InitContainers[i]) {
			look(pod.Spec.InitContainers[i].Name)
		}
	}
	for _, c := range pod.Spec.Containers {
		look(c.Name)
	}
	message := lists("containers with unknown status", missing, "containers with unready status", unready)
	switch {
	case p == corev1.PodSucceeded && len(missing) == 0:
		no.Reason = "PodCompleted"
	case p == corev1.PodFailed:
		no.Reason = "PodFailed"
	case message != "":
		no.Reason, no.Message = "ContainersNotReady", message
	default:
		return corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}
	}
	return no
}

func ready(pod *corev1.Pod, present []corev1.PodCondition, containers corev1.PodCondition) corev1.PodCondition {
	out := containers
	out.Type = corev1.PodReady
	if containers.Status != corev1.ConditionTrue {
		return out
	}
	var messages []string
	for _, gate := range pod.Spec.ReadinessGates {
		c := podconditions.Find(present, gate.ConditionType)
		switch {
		case c == nil:
			messages = append(messages, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", string(gate.ConditionType)))
		case c.Status != corev1.ConditionTrue:
			messages = append(messages, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", string(gate.ConditionType),
				c.Status))
		}
	}
	if len(messages) > 0 {
		return corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "ReadinessGatesNotReady",
			Message: strings.Join(messages, ", ")}
	}
	return out
}

func lists(a string, as []string, b string, bs []string) string {
	var out []string
	if len(as) > 0 {
		out = append(out, fmt.Sprintf("%s: %s", a, as))
	}
	if len(bs) > 0 {
		out = append(out, fmt.Sprintf("%s: %s", b, bs))
	}
	return strings.Join(out, ", ")
}
