// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podspec answers questions about a pod's definition: which container has a name, how logs and events refer to the pod, and whether
// the pod is static or a mirror. It is pure.
package podspec

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The annotations of pods that do not come from the API server, and of their mirrors.
const (
	ConfigSource = "kubernetes.io/config.source"
	ConfigSeen   = "kubernetes.io/config.seen"
	ConfigHash   = "kubernetes.io/config.hash"
)

// IsStatic reports whether the pod came from a file or a page.
func IsStatic(pod *corev1.Pod) bool {
	source := pod.Annotations[ConfigSource]
	return source != "" && source != "api" && !IsMirror(pod)
}

// IsMirror reports whether the pod is what the API server shows of a static pod.
func IsMirror(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}

// IsCritical reports whether the node keeps the pod whatever it is short of, and ends others for it.
func IsCritical(pod *corev1.Pod) bool {
	const systemCritical = 2_000_000_000
	return IsStatic(pod) || IsMirror(pod) || pod.Spec.Priority != nil && *pod.Spec.Priority >= systemCritical
}

// Name is the pod's namespace and name.
func Name(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// Describe is how kubelet writes a pod in logs and messages.
func Describe(pod *corev1.Pod) string {
	return fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID)
}

// Container finds a container of any sort in a pod's definition; nil: it has none of that name.
func Container(pod *corev1.Pod, name string) *corev1.Container {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == name {
			return &pod.Spec.Containers[i]
		}
	}
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == name {
			return &pod.Spec.InitContainers[i]
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == name {
			return (*corev1.Container)(&pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		}
	}
	return nil
}

// ContainerReference is the object of an event on one container of the pod; on the pod where the container is nil or has no name.
func ContainerReference(pod *corev1.Pod, c *corev1.Container) *corev1.ObjectReference {
	ref := &corev1.ObjectReference{
		Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
	}
	if c != nil && c.Name != "" {
		ref.FieldPath = fieldPath(pod, c.Name)
	}
	return ref
}

func fieldPath(pod *corev1.Pod, name string) string {
	for _, c := range pod.Spec.InitContainers {
		if c.Name == name {
			return fmt.Sprintf("spec.initContainers{%s}", name)
		}
	}
	for _, c := range pod.Spec.EphemeralContainers {
		if c.Name == name {
			return fmt.Sprintf("spec.ephemeralContainers{%s}", name)
		}
	}
	return fmt.Sprintf("spec.containers{%s}", name)
}

// Target names a container of a pod. UID may be empty, which means whichever pod
// has the name; Container is empty for a whole pod.
type Target struct {
	Namespace, Pod string
	UID            types.UID
	Container      string
}

// End is how a pod ends that the node ends.
type End struct {
	Reason, Message string // of its status
	Grace           int64  // seconds
	Disruption      string // the message of the pod's condition DisruptionTarget; empty: the pod has none
}

// Streams says which streams of a process a client wants.
type Streams struct {
	Stdin, Stdout, Stderr, TTY bool
}

// Grace is how long the pod's containers have to end, in seconds, by the pod's definition.
func Grace(pod *corev1.Pod) int64 {
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		return *s
	}
	return corev1.DefaultTerminationGracePeriodSeconds
}
