// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podspec reads a pod's definition: it finds containers by name, names the pod in logs and events, and recognizes static and mirror
// pods. It is pure.
package podspec

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The annotations of static pods and of their mirror pods.
const (
	ConfigSource = "kubernetes.io/config.source"
	ConfigSeen   = "kubernetes.io/config.seen"
	ConfigHash   = "kubernetes.io/config.hash"
)

// IsStatic reports whether the pod came from a file or a URL.
func IsStatic(pod *corev1.Pod) bool {
	source := pod.Annotations[ConfigSource]
	return source != "" && source != "api" && !IsMirror(pod)
}

// IsMirror reports whether the pod is the mirror pod of a static pod.
func IsMirror(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}

// IsCritical reports whether the pod is critical: the node never evicts it, and preempts others for it.
func IsCritical(pod *corev1.Pod) bool {
	const systemCritical = 2_000_000_000
	return IsStatic(pod) || IsMirror(pod) || pod.Spec.Priority != nil && *pod.Spec.Priority >= systemCritical
}

// Name returns the pod's namespace and name.
func Name(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// Describe returns the form in which kubelet writes a pod in logs and messages.
func Describe(pod *corev1.Pod) string {
	return fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID)
}

// Container returns a container of any kind of a pod, or nil.
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

// ContainerReference returns the object of an event for one container of the pod; it is the pod if the container is nil or has no name.
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

// Target names a container of a pod. An empty UID means any pod with the name; an empty Container means the whole pod.
type Target struct {
	Namespace, Pod string
	UID            types.UID
	Container      string
}

// End describes how the node ends a pod.
type End struct {
	Reason, Message string // of its status
	Grace           int64  // in seconds
	Disruption      string // the message of the condition DisruptionTarget; empty: the pod gets no such condition
}

// Streams are the streams of a process that a client requests.
type Streams struct {
	Stdin, Stdout, Stderr, TTY bool
}

// Grace returns the pod's grace period in seconds, by its definition.
func Grace(pod *corev1.Pod) int64 {
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		return *s
	}
	return corev1.DefaultTerminationGracePeriodSeconds
}
