// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/agent/decide"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

type kind int

const (
	kindRegular kind = iota
	kindInit
	kindEphemeral
)

// gone is the message of a container that ran and is missing now.
const gone = "ContainerStatusUnknown"

// containers computes the statuses of the containers of one kind in kubelet's order: init containers in their own order, all others by
// name.
func containers(in Input, state *podstate.Pod, specs []corev1.Container, before []corev1.ContainerStatus, k kind,
	initializing bool) []corev1.ContainerStatus {
	old := byName(before)
	var out []corev1.ContainerStatus
	for i := range specs {
		s := one(in, state, &specs[i], old, k, initializing)
		if in.Given != nil && k == kindRegular {
			s.AllocatedResourcesStatus = in.Given(s.Name)
		}
		out = append(out, s)
	}
	if k != kindInit {
		slices.SortStableFunc(out, func(a, b corev1.ContainerStatus) int { return strings.Compare(a.Name, b.Name) })
	}
	return out
}

func one(in Input, state *podstate.Pod, spec *corev1.Container, old map[string]corev1.ContainerStatus, k kind,
	initializing bool) corev1.ContainerStatus {
	was, known := old[spec.Name]
	instances := instancesOf(state, spec.Name)
	if len(instances) == 0 {
		return unstarted{in, state, spec, k, initializing}.status(was, known)
	}
	newest := instances[0]
	s := corev1.ContainerStatus{
		Name:         spec.Name,
		RestartCount: newest.Note.RestartCount,
		Image:        newest.Image,
		ImageID:      newest.ImageRef,
		ContainerID:  in.Scheme + "://" + newest.ID,
		State:        stateOf(in, newest, was, known),
		VolumeMounts: mounts(spec),
	}
	if known {
		s.RestartCount = max(s.RestartCount, was.RestartCount)
	}
	resources := spec.Resources.DeepCopy()
	if in.Resources != nil && newest.State == podstate.Running {
		given := in.Resources(newest, spec)
		resources = given.DeepCopy()
	}
	s.AllocatedResources, s.Resources = resources.Requests, resources
	if in.promised() {
		s.AllocatedResources = spec.Resources.DeepCopy().Requests
	}
	if u := newest.User; u != nil {
		s.User = &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: u.Uid, GID: u.Gid, SupplementalGroups: u.SupplementalGroups}}
	}
	switch {
	case len(instances) > 1:
		s.LastTerminationState = stateOf(in, instances[1], was, known)
	case known && was.ContainerID != s.ContainerID && was.State.Terminated != nil:
		s.LastTerminationState.Terminated = was.State.Terminated
	case known && was.LastTerminationState.Terminated != nil:
		s.LastTerminationState = was.LastTerminationState
	}
	// An ended container that will start again shows that it waits.
	if waiting, ok := in.waits(spec); ok && newest.State != podstate.Running && !finished(in, spec, newest, k) {
		if newest.State == podstate.Exited {
			s.LastTerminationState = s.State
		}
		s.State = corev1.ContainerState{Waiting: &waiting}
	}
	return s
}

// waits returns why a container waits to start; false: the reason is unknown, or the pod is deleted and starts nothing any more.
func (in Input) waits(spec *corev1.Container) (corev1.ContainerStateWaiting, bool) {
	waiting, ok := in.Waiting[spec.Name]
	return waiting, ok && in.Pod.DeletionTimestamp == nil
}

// finished reports whether the ended container has ended for good.
func finished(in Input, spec *corev1.Container, c *podstate.Container, k kind) bool {
	if c.State != podstate.Exited {
		return false
	}
	return k == kindEphemeral || !decide.ShouldRestart(in.Pod, spec, c.ExitCode)
}

// unstarted is a container that the runtime does not have.
type unstarted struct {
	in           Input
	state        *podstate.Pod
	spec         *corev1.Container
	kind         kind
	initializing bool // the pod's init containers have not ended
}

// status returns the container's status; was is the previous one, if known.
func (u unstarted) status(was corev1.ContainerStatus, known bool) corev1.ContainerStatus {
	in, state, spec := u.in, u.state, u.spec
	s := corev1.ContainerStatus{
		Name: spec.Name, Image: spec.Image, VolumeMounts: mounts(spec),
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}},
	}
	if u.initializing {
		s.State.Waiting.Reason = "PodInitializing"
	}
	if known && was.State.Waiting == nil && startsAnew(in, state) {
		const message = "The container is removed because RestartAllContainers in place"
		s.RestartCount = was.RestartCount + 1
		s.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: anew, Message: message}}
		s.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: anew, Message: message, ExitCode: 137}
		return s
	}
	if known && was.State.Terminated != nil {
		return was
	}
	if known {
		s.RestartCount, s.LastTerminationState = was.RestartCount, was.LastTerminationState
	}
	if waiting, ok := in.waits(spec); ok {
		s.State.Waiting = &waiting
	}
	if known && was.State.Running != nil && s.LastTerminationState.Terminated == nil {
		s.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{
			Reason: gone, ExitCode: 137,
			Message: "The container could not be located when the pod was deleted.  The container used to be Running",
		}
		if in.Pod.DeletionTimestamp == nil {
			s.RestartCount++
		}
	}
	if u.kind == kindInit && !decide.Sidecar(spec) &&
		slices.ContainsFunc(in.Pod.Spec.Containers, func(c corev1.Container) bool { return state.Newest(c.Name) != nil }) {
		s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			Reason:  "Completed",
			Message: "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally",
		}}
	}
	return s
}

func instancesOf(state *podstate.Pod, name string) []*podstate.Container {
	var out []*podstate.Container
	for i := range state.Containers {
		if state.Containers[i].Name == name {
			out = append(out, &state.Containers[i])
		}
	}
	return out
}

func stateOf(in Input, c *podstate.Container, was corev1.ContainerStatus, known bool) corev1.ContainerState {
	switch {
	case c.State == podstate.Running:
		return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: second(c.Started)}}
	case c.State == podstate.Exited && known && saidBefore(was, in.Scheme+"://"+c.ID) != nil:
		return corev1.ContainerState{Terminated: saidBefore(was, in.Scheme+"://"+c.ID)}
	case c.State == podstate.Exited:
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: c.ExitCode, Reason: c.Reason, Message: c.Message,
			StartedAt: second(c.Started), FinishedAt: second(c.Finished),
			ContainerID: in.Scheme + "://" + c.ID,
		}}
	case c.State == podstate.Unknown && known && was.State.Running != nil:
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			Reason: gone, Message: "The container could not be located when the pod was terminated", ExitCode: 137,
		}}
	}
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
}

// saidBefore returns the reported termination of the container with the ID: it never changes, and its message may not be readable any more.
func saidBefore(was corev1.ContainerStatus, id string) *corev1.ContainerStateTerminated {
	for _, t := range []*corev1.ContainerStateTerminated{was.State.Terminated, was.LastTerminationState.Terminated} {
		if t != nil && t.ContainerID == id {
			return t
		}
	}
	return nil
}

// second truncates a time to whole seconds, as on the wire, so that it equals what is read back.
func second(t time.Time) metav1.Time {
	if t.IsZero() {
		return metav1.Time{}
	}
	return metav1.NewTime(t).Rfc3339Copy()
}

func mounts(spec *corev1.Container) []corev1.VolumeMountStatus {
	var out []corev1.VolumeMountStatus
	for _, m := range spec.VolumeMounts {
		s := corev1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			mode := corev1.RecursiveReadOnlyDisabled
			s.RecursiveReadOnly = &mode
		}
		out = append(out, s)
	}
	return out
}
