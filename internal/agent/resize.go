// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/decide"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// bounds are the resources that a running container has: those that it was started with, or was given since. What an
// earlier life of the node gave it stands in the status.
func (w *worker) bounds(pod *corev1.Pod, id string, spec *corev1.Container) corev1.ResourceRequirements {
	if have, ok := w.applied[id]; ok {
		return have
	}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for _, s := range list {
			if s.Name == spec.Name && s.ContainerID == w.n.cri.ContainerID(id) && s.Resources != nil {
				return *s.Resources
			}
		}
	}
	return spec.Resources
}

// resize gives running containers the resources that the pod was given since they were started. It returns those that
// must be started again for it. Where the node cannot do it, the pod's conditions say why.
func (w *worker) resize(ctx context.Context, pod *corev1.Pod) []decide.Kill {
	n := w.n
	w.resizing = nil
	maps.DeleteFunc(w.applied, func(id string, _ corev1.ResourceRequirements) bool {
		return !slices.ContainsFunc(w.state.Containers, func(c podstate.Container) bool { return c.ID == id })
	})
	var kills []decide.Kill
	checked, given := false, false
	failed := func(err error) {
		why := corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue, Reason: corev1.PodReasonError, Message: err.Error()}
		w.resizing = append(w.resizing, why)
		w.resizeTroubled(pod, why)
	}
	for _, c := range w.state.Running() {
		spec := container(pod, c.Name)
		if spec == nil || c.State != podstate.Running {
			continue
		}
		have := w.bounds(pod, c.ID, spec)
		changed := changedResources(have, spec.Resources)
		if len(changed) == 0 {
			continue
		}
		if !checked {
			checked = true
			if why := n.resizable(w, pod); why != nil {
				w.resizing = append(w.resizing, *why)
				w.resizeTroubled(pod, *why)
				w.applied[c.ID] = have // until it can be done, nothing has changed
				return nil
			}
			w.resizeStarts(pod)
			// The pod's own bounds are as wide as those within them, at any time.
			if err := n.bound(pod, true); err != nil {
				failed(err)
				w.applied[c.ID] = have
				return nil
			}
		}
		if restarts(spec, changed) {
			kills = append(kills, decide.Kill{ID: c.ID, Name: c.Name, Message: fmt.Sprintf("Container %s resize requires restart", c.Name)})
			w.resized.restarting = append(w.resized.restarting, c.Name)
			continue
		}
		err := n.cri.Runtime.UpdateContainerResources(cri.Quiet(ctx), c.ID, &runtimeapi.ContainerResources{Linux: n.config.Resources(pod, spec)})
		if err != nil {
			w.applied[c.ID] = have
			failed(errors.New(cri.Message(err)))
			continue
		}
		w.applied[c.ID], given = spec.Resources, true
	}
	if given && len(w.resizing) == 0 && len(kills) == 0 {
		if err := n.bound(pod, false); err != nil {
			failed(err)
		}
	}
	if len(kills) > 0 {
		w.resizing = append(w.resizing, corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue})
		return kills
	}
	w.resizeEnds(pod)
	return nil
}

// changedResources are the resources of which a container is to have more or less.
func changedResources(have, want corev1.ResourceRequirements) []corev1.ResourceName {
	var out []corev1.ResourceName
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		same := func(a, b corev1.ResourceList) bool {
			x, y := a[name], b[name]
			return x.Cmp(y) == 0
		}
		if !same(have.Limits, want.Limits) || !same(have.Requests, want.Requests) {
			out = append(out, name)
		}
	}
	return out
}

// restarts says whether the container wants to be started again when one of the resources changes.
func restarts(spec *corev1.Container, changed []corev1.ResourceName) bool {
	for _, p := range spec.ResizePolicy {
		for _, name := range changed {
			if p.ResourceName == name && p.RestartPolicy == corev1.RestartContainer {
				return true
			}
		}
	}
	return false
}

// resizable is why the pod cannot have what it was given: never on this node, or not now.
func (n *node) resizable(w *worker, pod *corev1.Pod) *corev1.PodCondition {
	pending := func(reason, message string) *corev1.PodCondition {
		return &corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: reason, Message: message}
	}
	allocatable := n.allocatable()
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		limit := allocatable[name]
		capacity := limit.Value()
		if name == corev1.ResourceCPU {
			capacity = limit.MilliValue()
		}
		if want := request(pod, name); want > capacity {
			return pending(corev1.PodReasonInfeasible, fmt.Sprintf("Node didn't have enough capacity: %s, requested: %d, capacity: %d", name, want, capacity)) // upstream's words
		}
	}
	if reject := (*rejection)(nil); errors.As(n.fits(w, pod), &reject) {
		return pending(corev1.PodReasonDeferred, reject.message)
	}
	return nil
}
