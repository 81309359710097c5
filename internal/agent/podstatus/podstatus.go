// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podstatus makes a pod's status from its definition, from what the runtime
// has, and from probes' verdicts. It is pure: the same input gives the same status,
// and the same status is not written again.
//
// The order of work matters and is kubelet's: container statuses first (from the
// newest two instances of each container), then what probes say of readiness, then
// the phase from those, then the conditions.
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

// Input is what a status is made from.
type Input struct {
	Pod *corev1.Pod // with the status of before
	// State is what the runtime has; nil when it has not been asked yet.
	State *podstate.Pod

	HostIPs []string
	PodIPs  []string // of a pod in the host's network; nil: the host's
	Scheme  string   // of container IDs: "containerd"

	// Waiting are the reasons why containers wait, by container name.
	Waiting map[string]corev1.ContainerStateWaiting
	// Started and Ready are the probes' verdicts of a running container, by container ID.
	Started func(c *podstate.Container) bool
	Ready   func(c *podstate.Container) bool

	// Resources are those that a container has been given; nil: those of its definition.
	Resources func(c *podstate.Container, spec *corev1.Container) corev1.ResourceRequirements
	// Whole is what a pod with resources of its own has been given as a whole; nil: it has none.
	Whole *corev1.ResourceRequirements
	// Resizing are the conditions of a pod that does not have the resources that it should.
	Resizing []corev1.PodCondition

	// Terminal says that the pod's containers are never to run again (deleted, evicted,
	// past its deadline): the phase may end.
	Terminal bool
	// Reason and Message are given with Terminal to a pod that was ended by the node: it failed.
	Reason, Message string
	// Over says that the pod is to end and that nothing of it is left: this is its last status.
	Over bool
	// Static says that the pod is of no API server's.
	Static bool
	// Disruption is the condition DisruptionTarget of a pod that the node ends; nil: it has none of the node's.
	Disruption *corev1.PodCondition
	Now        metav1.Time
}

// owned are the conditions that the node writes; all others are left as they are.
var owned = []corev1.PodConditionType{
	corev1.PodScheduled, corev1.PodReady, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReadyToStartContainers,
	corev1.PodResizePending, corev1.PodResizeInProgress, corev1.AllContainersRestarting,
}

// Make makes the status.
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
	out.Phase = phase(in.Pod, &out, in.Terminal || ended(old.Phase), initialized != nil && initialized.Status == corev1.ConditionTrue)
	switch {
	case in.Terminal && in.Reason != "":
		out.Phase, out.Reason, out.Message = corev1.PodFailed, in.Reason, in.Message
	case ended(old.Phase):
		out.Phase, out.Reason, out.Message = old.Phase, old.Reason, old.Message
	}
	if ended(out.Phase) && !ended(old.Phase) && len(state.Running()) > 0 {
		// It is as good as over, but others count on an ended pod to have nothing running.
		out.Phase, out.Reason, out.Message = cmp.Or(old.Phase, corev1.PodPending), old.Reason, old.Message
	}
	if in.Over {
		endContainers(in, &out)
	}
	conditions(in, state, &out)
	if in.Over && !in.Static && !ended(out.Phase) {
		out.Phase = corev1.PodFailed // the conditions say why it was not ready before
	}
	return out
}

// Equal says whether writing the second after the first would change nothing.
func Equal(a, b corev1.PodStatus) bool {
	return equality.Semantic.DeepEqual(a, b)
}

func ended(p corev1.PodPhase) bool {
	return p == corev1.PodFailed || p == corev1.PodSucceeded
}

func ephemeral(pod *corev1.Pod) []corev1.Container {
	var out []corev1.Container
	for _, c := range pod.Spec.EphemeralContainers {
		out = append(out, corev1.Container(c.EphemeralContainerCommon))
	}
	return out
}

// addresses puts the pod's addresses in the order of the node's: first one of the
// family of the node's first address. A pod whose sandbox is gone keeps the addresses
// that it had.
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

// AddSecond adds the host's second address to those of a pod in its network that has one alone, of the other family: the host has
// become one of both.
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

// PodIPs are the pod's addresses, in the order of the node's.
func PodIPs(pod *corev1.Pod, state *podstate.Pod, hostIPs []string) []string {
	if pod.Spec.HostNetwork {
		return hostIPs
	}
	return SortIPs(state.IPs(), hostIPs)
}

// SortIPs picks one address a family, the family of the host's first address first.
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

// promised says whether the pod does not yet have what the node has promised it: the resources of its definition.
func (in Input) promised() bool {
	return slices.ContainsFunc(in.Resizing, func(c corev1.PodCondition) bool { return c.Type == corev1.PodResizeInProgress })
}

// QOS is the pod's class of service.
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

// byName indexes statuses.
func byName(statuses []corev1.ContainerStatus) map[string]corev1.ContainerStatus {
	out := make(map[string]corev1.ContainerStatus, len(statuses))
	for _, s := range statuses {
		out[s.Name] = s
	}
	return out
}
