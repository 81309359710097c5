// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podstate

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/dump"
)

// The labels and annotations that kubelet writes on sandboxes and containers.
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"

	noteHash          = "io.kubernetes.container.hash"
	noteRestartCount  = "io.kubernetes.container.restartCount"
	noteMessagePath   = "io.kubernetes.container.terminationMessagePath"
	noteMessagePolicy = "io.kubernetes.container.terminationMessagePolicy"
	notePreStop       = "io.kubernetes.container.preStopHandler"
	notePorts         = "io.kubernetes.container.ports"
	noteDeletionGrace = "io.kubernetes.pod.deletionGracePeriod"
	noteGrace         = "io.kubernetes.pod.terminationGracePeriod"
)

// Note is the node's record of a container, in the container's annotations.
type Note struct {
	Hash             uint64
	RestartCount     int32
	MessagePath      string
	MessagePolicy    corev1.TerminationMessagePolicy
	PreStop          *corev1.LifecycleHandler
	Ports            []corev1.ContainerPort
	TerminationGrace *int64
	DeletionGrace    *int64
}

// SandboxLabels returns the labels of the pod's sandboxes: the pod's own, and its identity.
func SandboxLabels(pod *corev1.Pod) map[string]string {
	out := make(map[string]string, len(pod.Labels)+3)
	maps.Copy(out, pod.Labels)
	out[LabelPodName] = pod.Name
	out[LabelPodNamespace] = pod.Namespace
	out[LabelPodUID] = string(pod.UID)
	return out
}

// ContainerLabels returns the labels of one container of the pod.
func ContainerLabels(pod *corev1.Pod, container *corev1.Container) map[string]string {
	return map[string]string{
		LabelPodName:       pod.Name,
		LabelPodNamespace:  pod.Namespace,
		LabelPodUID:        string(pod.UID),
		LabelContainerName: container.Name,
	}
}

// ContainerAnnotations returns the annotations that record the container.
func ContainerAnnotations(pod *corev1.Pod, container *corev1.Container, restartCount int32) (map[string]string, error) {
	out := map[string]string{
		noteHash:          strconv.FormatUint(Hash(container), 16),
		noteRestartCount:  strconv.Itoa(int(restartCount)),
		noteMessagePath:   container.TerminationMessagePath,
		noteMessagePolicy: string(container.TerminationMessagePolicy),
	}
	if s := pod.DeletionGracePeriodSeconds; s != nil {
		out[noteDeletionGrace] = strconv.FormatInt(*s, 10)
	}
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		out[noteGrace] = strconv.FormatInt(*s, 10)
	}
	if container.Lifecycle != nil && container.Lifecycle.PreStop != nil {
		text, err := json.Marshal(container.Lifecycle.PreStop)
		if err != nil {
			return nil, fmt.Errorf("encode preStop of %s: %w", container.Name, err)
		}
		out[notePreStop] = string(text)
	}
	if len(container.Ports) > 0 {
		text, err := json.Marshal(container.Ports)
		if err != nil {
			return nil, fmt.Errorf("encode ports of %s: %w", container.Name, err)
		}
		out[notePorts] = string(text)
	}
	return out, nil
}

// ReadNote parses the annotations. Missing or invalid ones leave the zero value: a container is never lost because someone changed its
// annotations.
func ReadNote(annotations map[string]string) Note {
	note := Note{
		MessagePath:   annotations[noteMessagePath],
		MessagePolicy: corev1.TerminationMessagePolicy(annotations[noteMessagePolicy]),
	}
	if n, err := strconv.ParseUint(annotations[noteHash], 16, 64); err == nil {
		note.Hash = n
	}
	if n, err := strconv.ParseInt(annotations[noteRestartCount], 10, 32); err == nil {
		note.RestartCount = int32(n)
	}
	if n, err := strconv.ParseInt(annotations[noteGrace], 10, 64); err == nil {
		note.TerminationGrace = &n
	}
	if n, err := strconv.ParseInt(annotations[noteDeletionGrace], 10, 64); err == nil {
		note.DeletionGrace = &n
	}
	if text, ok := annotations[notePreStop]; ok {
		handler := &corev1.LifecycleHandler{}
		if json.Unmarshal([]byte(text), handler) == nil {
			note.PreStop = handler
		}
	}
	if text, ok := annotations[notePorts]; ok {
		var ports []corev1.ContainerPort
		if json.Unmarshal([]byte(text), &ports) == nil {
			note.Ports = ports
		}
	}
	return note
}

// Hash identifies the parts of a container's definition that cannot change while it runs: its name and image. It equals kubelet's hash:
// FNV-1a over the deep dump of the JSON of these two fields.
func Hash(container *corev1.Container) uint64 {
	text, err := json.Marshal(map[string]string{"name": container.Name, "image": container.Image})
	if err != nil {
		panic("a map of strings has no JSON: " + err.Error())
	}
	sum := fnv.New32a()
	fmt.Fprintf(sum, "%v", dump.ForHash(text))
	return uint64(sum.Sum32())
}
