// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"

	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/podspec"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// Pod describes pods. This file has the subresources that write the pod, podconnect.go those that connect to its node.
func Pod(dial egress.Dial) *resource.Descriptor {
	check := upstream.Pod()
	return kind.Describe[*corev1.Pod](resource.Descriptor{
		Resource:   "pods",
		Kind:       "Pod",
		ShortNames: []string{"po"},
		Categories: []string{"all"},
		Namespaced: true,
		FieldNames: []string{
			"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
			"status.phase", "status.podIP", "status.nominatedNodeName",
			"status.podIPs",
		},
		Fields: kind.Fields(podFields),
		Strategy: resource.Strategy{
			PrepareCreate: preparePod,
			PrepareUpdate: kind.OnUpdate(func(pod, old *corev1.Pod) {
				pod.Status = old.Status
				if upstream.Gate("PodLevelResourcesFixDefaulting") && pod.Spec.Resources == nil && old.Spec.Resources != nil {
					pod.Spec.Resources = old.Spec.Resources.DeepCopy()
				}
				podspec.DropOff(&pod.Spec, &old.Spec)
				podspec.DropInitAnnotations(pod.Annotations)
				raisePodGeneration(pod, old)
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			ReturnDeleted:  true,
			Warn:           kind.Warn(podWarnings),
			Graceful:       gracePod,
		},
		Subresources: append([]resource.Subresource{
			podBinding(),
			podEviction(),
			kind.Window("ephemeralcontainers", onlyEphemeral, upstream.PodEphemeralContainers()),
			kind.Window("resize", onlyResources, upstream.PodResize()),
			podStatus(check.Status),
		}, podConnect(dial)...),
	})
}

// preparePod sets a new pod's first status, and the defaults that depend on more than one field.
func preparePod(ctx context.Context, obj resource.Object) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	pod.Generation = 1
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
	podspec.DropOff(&pod.Spec, nil)
	podspec.DropInitAnnotations(pod.Annotations)
	gateScheduling(pod)
	podspec.MergeLabelKeys(pod)
	for _, text := range podspec.SyncAppArmor(pod) {
		warning.AddWarning(ctx, "", text)
	}
	podspec.DefaultPodResources(pod)
	pod.Status.QOSClass = podspec.QOSClass(pod)
}

func podFields(pod *corev1.Pod) fields.Set {
	ip := ""
	if len(pod.Status.PodIPs) > 0 {
		ip = pod.Status.PodIPs[0].IP
	}
	return fields.Set{
		"spec.nodeName":            pod.Spec.NodeName,
		"spec.restartPolicy":       string(pod.Spec.RestartPolicy),
		"spec.schedulerName":       pod.Spec.SchedulerName,
		"spec.serviceAccountName":  pod.Spec.ServiceAccountName,
		"spec.hostNetwork":         strconv.FormatBool(pod.Spec.HostNetwork),
		"status.phase":             string(pod.Status.Phase),
		"status.podIP":             ip,
		"status.podIPs":            "", // accepted as upstream does, though no pod has a value there
		"status.nominatedNodeName": pod.Status.NominatedNodeName,
	}
}

// gateScheduling sets the condition of a new pod whose gates hold the scheduler back.
func gateScheduling(pod *corev1.Pod) {
	if len(pod.Spec.SchedulingGates) == 0 {
		return
	}
	podspec.SetCondition(&pod.Status, corev1.PodCondition{
		Type:    corev1.PodScheduled,
		Status:  corev1.ConditionFalse,
		Reason:  corev1.PodReasonSchedulingGated,
		Message: "Scheduling is blocked due to non-empty scheduling gates",
	})
}

// raisePodGeneration increments the generation after a change of the spec.
func raisePodGeneration(pod, old *corev1.Pod) {
	if !kind.Same(pod.Spec, old.Spec) {
		pod.Generation++
	}
}

// podWarnings returns warnings on create only: users seldom update pods, and controllers often do.
func podWarnings(pod, old *corev1.Pod) []string {
	if old != nil {
		return nil
	}
	var warnings []string
	if msgs := validation.IsDNS1123Label(pod.Name); len(msgs) != 0 {
		warnings = append(warnings, fmt.Sprintf(
			"metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: %v", msgs))
	}
	return append(warnings, podspec.Warnings(nil, &pod.Spec, &pod.ObjectMeta)...)
}

// gracePod sets the grace period of a pod on a node; a pod without a node, or a finished one, is deleted at once.
func gracePod(_ context.Context, obj resource.Object, opts *metav1.DeleteOptions) bool {
	pod, ok := obj.(*corev1.Pod)
	if !ok || opts == nil {
		return false
	}
	var period int64
	switch {
	case opts.GracePeriodSeconds != nil:
		period = *opts.GracePeriodSeconds
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		period = *pod.Spec.TerminationGracePeriodSeconds
	}
	if pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		period = 0
	}
	if period < 0 {
		period = 1
	}
	opts.GracePeriodSeconds = &period
	return true
}

// podStatus lets kubelets and other clients write the status; it keeps fields that they do not know.
func podStatus(check upstream.UpdateCheck) resource.Subresource {
	s := kind.Status(func(pod, old *corev1.Pod) {
		pod.Spec = old.Spec
		pod.DeletionTimestamp = nil
		pod.OwnerReferences = old.OwnerReferences
		if pod.Status.QOSClass == "" {
			pod.Status.QOSClass = old.Status.QOSClass
		}
		if pod.Status.ResourceClaimStatuses == nil {
			pod.Status.ResourceClaimStatuses = old.Status.ResourceClaimStatuses
		}
		if pod.Status.ExtendedResourceClaimStatus == nil {
			pod.Status.ExtendedResourceClaimStatus = old.Status.ExtendedResourceClaimStatus
		}
		keepObservedGeneration(&pod.Status, &old.Status)
		podspec.DropOffStatus(&pod.Status, &old.Status)
	}, check)
	s.Strategy.Warn = kind.Warn(func(pod, _ *corev1.Pod) []string {
		var warnings []string
		for i, ip := range pod.Status.PodIPs {
			warnings = append(warnings, validation.GetWarningsForIP(field.NewPath("status", "podIPs").Index(i).Child("ip"), ip.IP)...)
		}
		for i, ip := range pod.Status.HostIPs {
			warnings = append(warnings, validation.GetWarningsForIP(field.NewPath("status", "hostIPs").Index(i).Child("ip"), ip.IP)...)
		}
		return warnings
	})
	return s
}

// keepObservedGeneration keeps the observed generations that a writer left out. It matches conditions of a type in order.
func keepObservedGeneration(status, old *corev1.PodStatus) {
	if status.ObservedGeneration == 0 {
		status.ObservedGeneration = old.ObservedGeneration
	}
	known := map[corev1.PodConditionType][]int64{}
	for _, c := range old.Conditions {
		known[c.Type] = append(known[c.Type], c.ObservedGeneration)
	}
	for i := range status.Conditions {
		c := &status.Conditions[i]
		var was int64
		if g := known[c.Type]; len(g) > 0 {
			was, known[c.Type] = g[0], g[1:]
		}
		if c.ObservedGeneration == 0 {
			c.ObservedGeneration = was
		}
	}
}

// onlyEphemeral restores everything but the ephemeral containers.
func onlyEphemeral(pod, old *corev1.Pod) {
	ephemeral := pod.Spec.EphemeralContainers
	pod.Spec, pod.Status = old.Spec, old.Status
	kind.KeepMeta(&pod.ObjectMeta, &old.ObjectMeta)
	pod.Spec.EphemeralContainers = ephemeral
	podspec.DropOff(&pod.Spec, &old.Spec)
	raisePodGeneration(pod, old)
}

// onlyResources restores everything but resources and resize policies. Validation refuses a change of the list of containers.
func onlyResources(pod, old *corev1.Pod) {
	if len(pod.Spec.Containers) == len(old.Spec.Containers) && len(pod.Spec.InitContainers) == len(old.Spec.InitContainers) {
		resources := pod.Spec.Resources
		ordinary := resized(pod.Spec.Containers, old.Spec.Containers)
		initial := resized(pod.Spec.InitContainers, old.Spec.InitContainers)
		volumes := old.Spec.Volumes
		if upstream.Gate("InPlacePodVerticalScalingMemoryBackedVolumes") {
			volumes = pod.Spec.Volumes
		}
		pod.Spec, pod.Status = old.Spec, old.Status
		kind.KeepMeta(&pod.ObjectMeta, &old.ObjectMeta)
		pod.Spec.Containers, pod.Spec.InitContainers, pod.Spec.Volumes = ordinary, initial, volumes
		if upstream.Gate("InPlacePodLevelResourcesVerticalScaling") {
			pod.Spec.Resources = resources
		}
	}
	if upstream.Gate("PodLevelResourcesFixDefaulting") {
		if pod.Spec.Resources == nil && old.Spec.Resources != nil {
			pod.Spec.Resources = old.Spec.Resources.DeepCopy()
		}
		if pod.Spec.Resources != nil {
			podspec.DefaultPodResources(pod)
		}
	}
	podspec.DropOff(&pod.Spec, &old.Spec)
	raisePodGeneration(pod, old)
}

// resized returns the old containers with the new resources, or the new ones if names do not match.
func resized(containers, old []corev1.Container) []corev1.Container {
	if len(containers) == 0 {
		return containers
	}
	out := append([]corev1.Container(nil), old...)
	for i, c := range containers {
		if c.Name != out[i].Name {
			return containers
		}
		out[i].Resources, out[i].ResizePolicy = c.Resources, c.ResizePolicy
	}
	return out
}
