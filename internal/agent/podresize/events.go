// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podresize

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// said records the reported events of a pod's resizes, so that each is reported once.
type said struct {
	ongoing    bool
	generation int64    // of the pod with the resize
	restarting []string // containers that restart for it
	told       string   // the last reported problem
}

// starts reports that a resize begins.
func (r *Pod) starts(pod *corev1.Pod) {
	if r.said.ongoing && r.said.generation == pod.Generation {
		return
	}
	r.said = said{ongoing: true, generation: pod.Generation}
	r.m.Events.Event(pod, corev1.EventTypeNormal, "ResizeStarted", resizeMessage(pod, "Pod resize started", ""))
}

// troubled reports why a resize is not possible.
func (r *Pod) troubled(pod *corev1.Pod, why corev1.PodCondition) {
	reason, prefix := "ResizeError", "Pod resize error"
	if why.Type == corev1.PodResizePending {
		reason, prefix = "Resize"+why.Reason, "Pod resize "+why.Reason
	}
	told := fmt.Sprint(reason, pod.Generation, why.Message)
	if r.said.told == told {
		return
	}
	r.said.told = told
	if _, detail := r.m.assigned(pod); why.Reason == corev1.PodReasonInfeasible && detail != "" {
		r.m.Metrics.infeasible.WithLabelValues(detail).Inc()
	}
	r.m.Events.Event(pod, corev1.EventTypeWarning, reason, resizeMessage(pod, prefix, why.Message))
}

// ends reports that a resize is complete, once the containers that restart for it run. Until then it is in progress.
func (r *Pod) ends(pod *corev1.Pod, state *podstate.Pod) {
	waits := slices.ContainsFunc(r.said.restarting, func(name string) bool {
		c := state.Newest(name)
		return c == nil || c.State != podstate.Running
	})
	switch {
	case !r.said.ongoing || len(r.conditions) > 0:
	case waits:
		r.conditions = append(r.conditions, corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue})
	default:
		r.m.Events.Event(pod, corev1.EventTypeNormal, "ResizeCompleted", resizeMessage(pod, "Pod resize completed", ""))
		r.said = said{}
	}
}

// resizeMessage returns kubelet's message of an event, with the resources of each container.
func resizeMessage(pod *corev1.Pod, prefix, trouble string) string {
	type part struct {
		Name      string                      `json:"name"`
		Resources corev1.ResourceRequirements `json:"resources"`
	}
	var all struct {
		InitContainers []part `json:"initContainers,omitempty"`
		Containers     []part `json:"containers,omitempty"`
		Generation     int64  `json:"generation"`
		Error          string `json:"error,omitempty"`
	}
	for _, c := range pod.Spec.InitContainers {
		all.InitContainers = append(all.InitContainers, part{c.Name, c.Resources})
	}
	for _, c := range pod.Spec.Containers {
		all.Containers = append(all.Containers, part{c.Name, c.Resources})
	}
	all.Generation, all.Error = pod.Generation, trouble
	text, err := json.Marshal(all)
	if err != nil {
		return prefix
	}
	return prefix + ": " + string(text)
}
