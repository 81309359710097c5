// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podresize implements the in-place resize of running pods.
//
//	podresize.go  the Manager, and the Pod, which resizes one pod
//	events.go     events of a resize
//	metrics.go    kubelet's metrics of resizes
//	memory.go     checks whether a pod's memory limit can be lowered
package podresize

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/allocatable"
	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/decide"
	"github.com/mortise-dev/mortise/internal/agent/podadmission"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/agent/runconfig"
)

// Cgroups are the pods' cgroups.
type Cgroups interface {
	// Raise widens the pod's limits to the maximum of the old and the new ones.
	Raise(pod *corev1.Pod) error
	// Bound sets the pod's new limits.
	Bound(pod *corev1.Pod) error
	// LessThanUsed reports whether the pod's new memory limit is below its usage; it returns both.
	LessThanUsed(pod *corev1.Pod) (most, used int64, less bool)
}

// Node is the Node object.
type Node interface {
	// Node returns the newest Node of the informer. The caller must not change it.
	Node() *corev1.Node
}

// Admission admits pods.
type Admission interface {
	// Resize returns a *podadmission.Rejection for a pod whose requests do not fit.
	Resize(ctx context.Context, pod *corev1.Pod) error
}

// Config configures a Manager. All fields but Metrics and Clock are required.
type Config struct {
	Runtime   *cri.Client
	Cgroups   Cgroups
	Node      Node
	Admission Admission
	Limits    runconfig.Node // computes containers' cgroup settings
	Kubelet   *configv1beta1.KubeletConfiguration
	Events    record.EventRecorder
	Metrics   *Metrics           // nil: they are not read
	Clock     clock.PassiveClock // nil: the machine's
}

// Manager makes a Pod for each pod. It has no state but its configuration.
type Manager struct{ Config }

// New makes the manager.
func New(c Config) *Manager {
	if c.Metrics == nil {
		c.Metrics = NewMetrics()
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	return &Manager{c}
}

// Requested counts the resizes that a newer definition of a pod asks for.
func (m *Manager) Requested(old, pod *corev1.Pod) { m.Metrics.Requested(old, pod) }

// Pod resizes one pod, and records its actual resources. It belongs to one goroutine.
type Pod struct {
	m          *Manager
	applied    map[string]corev1.ResourceRequirements // actual resources of containers, by ID
	shares     map[string]corev1.ResourceList         // the pod's limits when the container got them, by ID
	together   *corev1.ResourceRequirements           // actual pod-level resources; nil: the pod has none
	conditions []corev1.PodCondition                  // why some resources are not as they should be
	said       said
}

// NewPod makes the Pod of a new worker.
func (m *Manager) NewPod() *Pod {
	return &Pod{m: m, applied: map[string]corev1.ResourceRequirements{}, shares: map[string]corev1.ResourceList{}}
}

// Started notes that the pod's sandbox was made.
func (r *Pod) Started(pod *corev1.Pod) { r.together = effective(pod) }

// Conditions returns why some resources are not as they should be.
func (r *Pod) Conditions() []corev1.PodCondition { return r.conditions }

// Bounds returns the actual resources of a running container: those that it started with, or got by a resize. The status has those that a
// former process of the node has set.
func (r *Pod) Bounds(pod *corev1.Pod, id string, spec *corev1.Container) corev1.ResourceRequirements {
	if have, ok := r.applied[id]; ok {
		return have
	}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for _, s := range list {
			if s.Name == spec.Name && s.ContainerID == r.m.Runtime.ContainerID(id) && s.Resources != nil {
				return *s.Resources
			}
		}
	}
	return spec.Resources
}

// Resize applies the pod's definition to the pod and its running containers. It returns the containers that must restart for it. If the
// node cannot resize, the pod's conditions say why.
func (r *Pod) Resize(ctx context.Context, pod *corev1.Pod, state *podstate.Pod) []decide.Kill {
	r.conditions = nil
	is := func(id string) bool {
		return slices.ContainsFunc(state.Containers, func(c podstate.Container) bool { return c.ID == id })
	}
	maps.DeleteFunc(r.applied, func(id string, _ corev1.ResourceRequirements) bool { return !is(id) })
	maps.DeleteFunc(r.shares, func(id string, _ corev1.ResourceList) bool { return !is(id) })
	var kills []decide.Kill
	begun, given := false, false
	var actuating time.Time // since when; zero: nothing is to be done, or it is not possible
	defer func() {
		if !actuating.IsZero() {
			failed := slices.ContainsFunc(r.conditions, func(c corev1.PodCondition) bool { return c.Reason == corev1.PodReasonError })
			r.m.Metrics.actuated(r.m.Clock.Since(actuating), !failed)
		}
	}()
	failed := func(err error) {
		why := corev1.PodCondition{
			Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue, Reason: corev1.PodReasonError, Message: err.Error(),
		}
		r.conditions = append(r.conditions, why)
		r.troubled(pod, why)
	}
	begin := func() bool {
		if begun {
			return true
		}
		begun = true
		if why := r.m.refusal(ctx, pod); why != nil {
			r.conditions = append(r.conditions, *why)
			r.troubled(pod, *why)
			return false
		}
		actuating = r.m.Clock.Now()
		r.starts(pod)
		if err := r.memoryInUse(ctx, pod, state); err != nil {
			failed(err)
			return false
		}
		// The pod's own limits are never below those of its containers.
		if err := r.m.Cgroups.Raise(pod); err != nil {
			failed(err)
			return false
		}
		return true
	}
	have := r.Whole(pod)
	if have != nil && len(changedResources(*have, *effective(pod))) > 0 {
		r.together = have // until it is possible, nothing has changed
		if !begin() {
			return nil
		}
		given = true
	}
	for _, c := range state.Running() {
		spec := podspec.Container(pod, c.Name)
		if spec == nil || c.State != podstate.Running {
			continue
		}
		own, shared := r.Bounds(pod, c.ID, spec), r.shared(pod, c.ID)
		changed := append(changedResources(own, spec.Resources), changedShares(shared, pod, spec)...)
		if len(changed) == 0 {
			continue
		}
		r.applied[c.ID], r.shares[c.ID] = own, shared // likewise
		if !begin() {
			return nil
		}
		if restarts(spec, changed) {
			kills = append(kills, decide.Kill{ID: c.ID, Name: c.Name, Message: fmt.Sprintf("Container %s resize requires restart", c.Name)})
			r.said.restarting = append(r.said.restarting, c.Name)
			continue
		}
		limits := &runtimeapi.ContainerResources{Linux: r.m.Limits.Resources(pod, spec)}
		err := r.m.Runtime.Runtime.UpdateContainerResources(cri.Quiet(ctx), c.ID, limits)
		if err != nil {
			failed(errors.New(cri.Message(err)))
			continue
		}
		r.Given(pod, c.ID, spec)
		given = true
	}
	if given && len(r.conditions) == 0 && len(kills) == 0 {
		if err := r.m.Cgroups.Bound(pod); err != nil {
			failed(err)
		} else {
			r.together = effective(pod)
		}
	}
	if len(kills) > 0 {
		r.conditions = append(r.conditions, corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue})
		return kills
	}
	r.ends(pod, state)
	return nil
}

// Given records the resources of a container: its own, and the pod's limits, which apply if it has none.
func (r *Pod) Given(pod *corev1.Pod, id string, spec *corev1.Container) {
	r.applied[id], r.shares[id] = spec.Resources, nil
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		r.shares[id] = pod.Spec.Resources.Limits
	}
}

// effective returns the pod-level resources of a pod that sets them, and nil for all others. A limit that only some containers have is no
// limit of the pod.
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

// Whole returns the actual pod-level resources. The status has those that a former process of the node has set.
func (r *Pod) Whole(pod *corev1.Pod) *corev1.ResourceRequirements {
	now := effective(pod)
	switch {
	case now == nil:
		return nil
	case r.together != nil:
		return r.together
	case pod.Status.Resources != nil && pod.Status.AllocatedResources != nil:
		return pod.Status.Resources
	}
	return now
}

// shared returns the pod's limits at the time when a running container got them.
func (r *Pod) shared(pod *corev1.Pod, id string) corev1.ResourceList {
	if have, ok := r.shares[id]; ok {
		return have
	}
	if whole := r.Whole(pod); whole != nil {
		return whole.Limits
	}
	return nil
}

// changedShares returns the resources of a container that change because of the pod's limit.
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

// changedResources returns the resources of a container that change.
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

// restarts reports whether the resize policy of one of the resources requires a restart of the container.
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

// refusal returns why the resize is infeasible on this node or has to be deferred.
func (m *Manager) refusal(ctx context.Context, pod *corev1.Pod) *corev1.PodCondition {
	pending := func(reason, message string) *corev1.PodCondition {
		return &corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: reason, Message: message}
	}
	left := m.Node.Node().Status.Allocatable
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
	if why, _ := m.assigned(pod); why != "" {
		return pending(corev1.PodReasonInfeasible, why)
	}
	if reject := (*podadmission.Rejection)(nil); errors.As(m.Admission.Resize(ctx, pod), &reject) {
		return pending(corev1.PodReasonDeferred, reject.Message)
	}
	return nil
}
