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
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/allocatable"
	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/decide"
	"github.com/mortise-dev/mortise/internal/agent/podadmission"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/agent/runconfig"
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

// resize gives the pod as a whole, and its running containers, the resources that it was given since they were started. It returns those
// that must be started again for it. Where the node cannot do it, the pod's conditions say why.
func (w *worker) resize(ctx context.Context, pod *corev1.Pod) []decide.Kill {
	n := w.n
	w.resizing = nil
	is := func(id string) bool {
		return slices.ContainsFunc(w.state.Containers, func(c podstate.Container) bool { return c.ID == id })
	}
	maps.DeleteFunc(w.applied, func(id string, _ corev1.ResourceRequirements) bool { return !is(id) })
	maps.DeleteFunc(w.shares, func(id string, _ corev1.ResourceList) bool { return !is(id) })
	var kills []decide.Kill
	begun, given := false, false
	failed := func(err error) {
		why := corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue, Reason: corev1.PodReasonError, Message: err.Error()}
		w.resizing = append(w.resizing, why)
		w.resizeTroubled(pod, why)
	}
	begin := func() bool {
		if begun {
			return true
		}
		begun = true
		if why := n.resizable(ctx, pod); why != nil {
			w.resizing = append(w.resizing, *why)
			w.resizeTroubled(pod, *why)
			return false
		}
		w.resizeStarts(pod)
		if err := w.memoryInUse(ctx, pod); err != nil {
			failed(err)
			return false
		}
		// The pod's own bounds are as wide as those within them, at any time.
		if err := n.cgroups.Raise(pod); err != nil {
			failed(err)
			return false
		}
		return true
	}
	have := w.whole(pod)
	if have != nil && len(changedResources(*have, *effective(pod))) > 0 {
		w.together = have // until it can be done, nothing has changed
		if !begin() {
			return nil
		}
		given = true
	}
	for _, c := range w.state.Running() {
		spec := podspec.Container(pod, c.Name)
		if spec == nil || c.State != podstate.Running {
			continue
		}
		own, shared := w.bounds(pod, c.ID, spec), w.shared(pod, c.ID)
		changed := append(changedResources(own, spec.Resources), changedShares(shared, pod, spec)...)
		if len(changed) == 0 {
			continue
		}
		w.applied[c.ID], w.shares[c.ID] = own, shared // likewise
		if !begin() {
			return nil
		}
		if restarts(spec, changed) {
			kills = append(kills, decide.Kill{ID: c.ID, Name: c.Name, Message: fmt.Sprintf("Container %s resize requires restart", c.Name)})
			w.resized.restarting = append(w.resized.restarting, c.Name)
			continue
		}
		err := n.cri.Runtime.UpdateContainerResources(cri.Quiet(ctx), c.ID, &runtimeapi.ContainerResources{Linux: n.config.Resources(pod, spec)})
		if err != nil {
			failed(errors.New(cri.Message(err)))
			continue
		}
		w.given(pod, c.ID, spec)
		given = true
	}
	if given && len(w.resizing) == 0 && len(kills) == 0 {
		if err := n.cgroups.Bound(pod); err != nil {
			failed(err)
		} else {
			w.together = effective(pod)
		}
	}
	if len(kills) > 0 {
		w.resizing = append(w.resizing, corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue})
		return kills
	}
	w.resizeEnds(pod)
	return nil
}

// given notes what a container has: its own resources, and the pod's limits, which bound it where it has none.
func (w *worker) given(pod *corev1.Pod, id string, spec *corev1.Container) {
	w.applied[id], w.shares[id] = spec.Resources, nil
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		w.shares[id] = pod.Spec.Resources.Limits
	}
}

// effective is what a pod with resources of its own has as a whole; nil for all others, which have what their containers have. A limit that
// some containers have and others do not is none of the pod's.
func effective(pod *corev1.Pod) *corev1.ResourceRequirements {
	if !resourcehelper.IsPodLevelResourcesSet(pod) {
		return nil
	}
	all := resourcehelper.PodResourcesOptions{}
	limits := resourcehelper.PodLimits(pod, all)
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if !runconfig.Limited(pod, name) {
			delete(limits, name)
		}
	}
	return &corev1.ResourceRequirements{Requests: resourcehelper.PodRequests(pod, all), Limits: limits}
}

// whole is what such a pod was last given as a whole. What an earlier life of the node gave it stands in the status.
func (w *worker) whole(pod *corev1.Pod) *corev1.ResourceRequirements {
	now := effective(pod)
	switch {
	case now == nil:
		return nil
	case w.together != nil:
		return w.together
	case pod.Status.Resources != nil && pod.Status.AllocatedResources != nil:
		return pod.Status.Resources
	}
	return now
}

// shared are the pod's limits as a running container was given them.
func (w *worker) shared(pod *corev1.Pod, id string) corev1.ResourceList {
	if have, ok := w.shares[id]; ok {
		return have
	}
	if whole := w.whole(pod); whole != nil {
		return whole.Limits
	}
	return nil
}

// changedShares are the resources of which a container is to have more or less because the pod's limit bounds it.
func changedShares(have corev1.ResourceList, pod *corev1.Pod, spec *corev1.Container) []corev1.ResourceName {
	if !resourcehelper.IsPodLevelResourcesSet(pod) {
		return nil
	}
	var out []corev1.ResourceName
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		own, limit, old := spec.Resources.Limits[name], pod.Spec.Resources.Limits[name], have[name]
		if own.IsZero() && !limit.IsZero() && limit.Cmp(old) != 0 {
			out = append(out, name)
		}
	}
	return out
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
func (n *node) resizable(ctx context.Context, pod *corev1.Pod) *corev1.PodCondition {
	pending := func(reason, message string) *corev1.PodCondition {
		return &corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: reason, Message: message}
	}
	left := n.nodeStatus.Node().Status.Allocatable
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		limit := left[name]
		capacity := limit.Value()
		if name == corev1.ResourceCPU {
			capacity = limit.MilliValue()
		}
		if want := allocatable.Requested(pod, name); want > capacity {
			return pending(corev1.PodReasonInfeasible, fmt.Sprintf(
				"Node didn't have enough capacity: %s, requested: %d, capacity: %d", name, want, capacity)) // upstream's words
		}
	}
	if reject := (*podadmission.Rejection)(nil); errors.As(n.admission.Resize(ctx, pod), &reject) {
		return pending(corev1.PodReasonDeferred, reject.Message)
	}
	return nil
}
