// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podstatus computes a pod's status from its definition, the runtime's state and the probes' results. It is pure: the same input
// gives the same status, and the node does not write an equal status again.
//
// The order is kubelet's: first the container statuses (from the newest two instances of each container), then readiness by the probes,
// then the phase from those, then the conditions.
package podstatus

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/mortise-dev/mortise/internal/agent/decide"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/podconditions"
)

// Input has the inputs of a status.
type Input struct {
	Pod *corev1.Pod // with its previous status
	// State is the runtime's state; nil before the first query.
	State *podstate.Pod

	HostIPs []string
	PodIPs  []string // of a pod in the host's network; nil: the host's
	Scheme  string   // of container IDs: "containerd"

	// Waiting are the reasons why containers wait, by container name.
	Waiting map[string]corev1.ContainerStateWaiting
	// Started and Ready return the probes' results of a running container, by container ID.
	Started func(c *podstate.Container) bool
	Ready   func(c *podstate.Container) bool

	// Resources are the container's actual resources; nil: those of its definition.
	Resources func(c *podstate.Container, spec *corev1.Container) corev1.ResourceRequirements
	Resize
	// Given returns the health of the devices and claims that a container has; nil: it has none.
	Given func(container string) []corev1.ResourceStatus

	// Terminal means that the pod's containers never run again (deleted, evicted, past its deadline), so that the phase may become final.
	Terminal bool
	// Reason and Message are set with Terminal for a pod that the node has failed.
	Reason, Message string
	// Rejected means that the node has not admitted the pod. Where nothing of it runs, its status says only that, and why, as kubelet's does.
	Rejected bool
	// Over means that the pod is ending and nothing of it is left: this is its last status.
	Over bool
	// Static means that the pod is a static pod.
	Static bool
	// Disruption is the condition DisruptionTarget of a pod that the node ends, or nil.
	Disruption *corev1.PodCondition
	Now        metav1.Time
}

// Resize is the state of the pod's own resources.
type Resize struct {
	// Whole are the actual resources of a pod with pod-level resources; nil: it has none.
	Whole *corev1.ResourceRequirements
	// Resizing are the conditions of a pod whose resize is pending or in progress, and WaitingForPlugin of one that waits.
	Resizing []corev1.PodCondition
}

// WaitingForPlugin is the condition of a pod that waits for a plug-in of the node which was there before the node restarted. Kubernetes
// has none for it.
const WaitingForPlugin corev1.PodConditionType = "mortise.dev/WaitingForPlugin"

// owned are the conditions that the node writes; it leaves all others unchanged.
var owned = []corev1.PodConditionType{
	corev1.PodScheduled, corev1.PodReady, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReadyToStartContainers,
	corev1.PodResizePending, corev1.PodResizeInProgress, corev1.AllContainersRestarting,
	WaitingForPlugin,
}

// Make computes the status.
func Make(in Input) corev1.PodStatus {
	old := &in.Pod.Status
	state := in.State
	if state == nil {
		state = &podstate.Pod{UID: in.Pod.UID}
	}
	out := corev1.PodStatus{
		ObservedGeneration:                   in.Pod.Generation,
		QOSClass:                             old.QOSClass,
		NominatedNodeName:                    old.NominatedNodeName,
		StartTime:                            old.StartTime,
		Resize:                               old.Resize,
		ResourceClaimStatuses:                old.ResourceClaimStatuses,
		ExtendedResourceClaimStatus:          old.ExtendedResourceClaimStatus,
		NodeAllocatableResourceClaimStatuses: old.NodeAllocatableResourceClaimStatuses,
	}
	if out.QOSClass == "" {
		out.QOSClass = QOS(in.Pod)
	}
	if out.StartTime == nil {
		now := in.Now
		out.StartTime = &now
	}
	if in.Rejected && untouched(in, state) {
		out.Phase, out.Reason, out.Message = corev1.PodFailed, in.Reason, in.Message
		out.Conditions = othersConditions(old.Conditions)
		return out
	}
	if in.Whole != nil {
		out.Resources, out.AllocatedResources = in.Whole.DeepCopy(), in.Whole.Requests.DeepCopy()
		if in.promised() {
			out.AllocatedResources = resourcehelper.PodRequests(in.Pod, resourcehelper.PodResourcesOptions{})
		}
	}
	addresses(&out, in, state)

	hasInit := len(in.Pod.Spec.InitContainers) > 0
	out.InitContainerStatuses = containers(in, state, in.Pod.Spec.InitContainers, old.InitContainerStatuses, kindInit, true)
	out.ContainerStatuses = containers(in, state, in.Pod.Spec.Containers, old.ContainerStatuses, kindRegular, hasInit)
	out.EphemeralContainerStatuses = containers(in, state, ephemeral(in.Pod), old.EphemeralContainerStatuses, kindEphemeral, hasInit)

	probes(in, state, &out)
	initialized := podconditions.Find(old.Conditions, corev1.PodInitialized)
	out.Phase = phase(in.Pod, &out, in.Terminal || Ended(old.Phase), initialized != nil && initialized.Status == corev1.ConditionTrue)
	switch {
	case in.Terminal && in.Reason != "":
		out.Phase, out.Reason, out.Message = corev1.PodFailed, in.Reason, in.Message
	case Ended(old.Phase):
		out.Phase, out.Reason, out.Message = old.Phase, old.Reason, old.Message
	}
	if Ended(out.Phase) && !Ended(old.Phase) && len(state.Running()) > 0 {
		// It has practically ended, but clients rely on an ended pod to have no running containers.
		out.Phase, out.Reason, out.Message = cmp.Or(old.Phase, corev1.PodPending), old.Reason, old.Message
	}
	if in.Over {
		endContainers(in, &out)
	}
	conditions(in, state, &out)
	if in.Over && !in.Static && !Ended(out.Phase) {
		out.Phase = corev1.PodFailed // the conditions have explained before why it was not ready
	}
	return out
}

// untouched reports whether the pod has had neither a sandbox nor a container.
func untouched(in Input, state *podstate.Pod) bool {
	return len(state.Sandboxes)+len(state.Containers)+len(in.Pod.Status.ContainerStatuses)+len(in.Pod.Status.InitContainerStatuses) == 0
}

// Equal reports whether writing the second status after the first would change nothing.
func Equal(a, b corev1.PodStatus) bool {
	return equality.Semantic.DeepEqual(a, b)
}

// Ended reports whether a pod in the phase has ended for good.
func Ended(p corev1.PodPhase) bool {
	return p == corev1.PodFailed || p == corev1.PodSucceeded
}

func ephemeral(pod *corev1.Pod) []corev1.Container {
	var out []corev1.Container
	for _, c := range pod.Spec.EphemeralContainers {
		out = append(out, corev1.Container(c.EphemeralContainerCommon))
	}
	return out
}

// addresses orders the pod's addresses like the node's: the family of the node's first address comes first. A pod without a sandbox keeps
// its addresses.
func addresses(out *corev1.PodStatus, in Input, state *podstate.Pod) {
	if len(in.HostIPs) > 0 {
		out.HostIP = in.HostIPs[0]
		for _, ip := range in.HostIPs {
			out.HostIPs = append(out.HostIPs, corev1.HostIP{IP: ip})
		}
	}
	ips := SortIPs(state.IPs(), in.HostIPs)
	if in.Pod.Spec.HostNetwork {
		ips = nil
		if len(state.Sandboxes) > 0 || in.Pod.Status.PodIP != "" {
			ips = in.HostIPs
			if len(in.PodIPs) > 0 {
				ips = in.PodIPs
			}
		}
	}
	if len(ips) == 0 && len(state.Sandboxes) > 0 && !state.Sandboxes[0].Ready {
		out.PodIP, out.PodIPs = in.Pod.Status.PodIP, in.Pod.Status.PodIPs
		return
	}
	for _, ip := range ips {
		out.PodIPs = append(out.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(ips) > 0 {
		out.PodIP = ips[0]
	}
}

// AddSecond adds the host's second address to a pod in its network that has only one address, of the other family: the host has become
// dual-stack.
func AddSecond(ips, hostIPs []string) []string {
	if len(ips) != 1 || len(hostIPs) != 2 {
		return ips
	}
	one, err := netip.ParseAddr(ips[0])
	other, otherErr := netip.ParseAddr(hostIPs[1])
	if err != nil || otherErr != nil || one.Is4() == other.Is4() {
		return ips
	}
	return []string{ips[0], hostIPs[1]}
}

// PodIPs returns the pod's addresses in the order of the node's.
func PodIPs(pod *corev1.Pod, state *podstate.Pod, hostIPs []string) []string {
	if pod.Spec.HostNetwork {
		return hostIPs
	}
	return SortIPs(state.IPs(), hostIPs)
}

// SortIPs selects one address of each family, the family of the host's first address first.
func SortIPs(ips, hostIPs []string) []string {
	six := false
	if len(hostIPs) > 0 {
		if a, err := netip.ParseAddr(hostIPs[0]); err == nil {
			six = a.Is6()
		}
	}
	var out []string
	for _, want := range []bool{six, !six} {
		for _, ip := range ips {
			if a, err := netip.ParseAddr(ip); err == nil && a.Is6() == want {
				out = append(out, a.String())
				break
			}
		}
	}
	return out
}

// probes sets started and ready.
func probes(in Input, state *podstate.Pod, out *corev1.PodStatus) {
	set := func(s *corev1.ContainerStatus, sidecarOrRegular bool) {
		running := state.Newest(s.Name)
		started := s.State.Running != nil && running != nil && in.Started(running)
		s.Started = &started
		if sidecarOrRegular {
			s.Ready = started && in.Ready(running)
		} else {
			s.Ready = s.State.Terminated != nil && s.State.Terminated.ExitCode == 0
		}
	}
	for i := range out.ContainerStatuses {
		set(&out.ContainerStatuses[i], true)
	}
	for i := range out.InitContainerStatuses {
		c := find(in.Pod.Spec.InitContainers, out.InitContainerStatuses[i].Name)
		set(&out.InitContainerStatuses[i], c != nil && decide.Sidecar(c))
	}
}

func find(containers []corev1.Container, name string) *corev1.Container {
	for i := range containers {
		if containers[i].Name == name {
			return &containers[i]
		}
	}
	return nil
}

// promised reports whether the pod's actual resources still differ from its definition.
func (in Input) promised() bool {
	return slices.ContainsFunc(in.Resizing, func(c corev1.PodCondition) bool { return c.Type == corev1.PodResizeInProgress })
}

// QOS returns the pod's QoS class.
func QOS(pod *corev1.Pod) corev1.PodQOSClass {
	names := []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}
	any, guaranteed := false, true
	look := func(r corev1.ResourceRequirements) {
		for _, name := range names {
			limit, hasLimit := r.Limits[name]
			request, hasRequest := r.Requests[name]
			if hasLimit && !limit.IsZero() || hasRequest && !request.IsZero() {
				any = true
			}
			if !hasLimit || limit.IsZero() || hasRequest && request.Cmp(limit) != 0 {
				guaranteed = false
			}
		}
	}
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		look(*pod.Spec.Resources)
	} else {
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			look(c.Resources)
		}
	}
	switch {
	case !any:
		return corev1.PodQOSBestEffort
	case guaranteed:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// byName indexes statuses by name.
func byName(statuses []corev1.ContainerStatus) map[string]corev1.ContainerStatus {
	out := make(map[string]corev1.ContainerStatus, len(statuses))
	for _, s := range statuses {
		out[s.Name] = s
	}
	return out
}
