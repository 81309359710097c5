// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumebinder

import (
	"errors"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// settings are those of the pods that recycle volumes.
type settings struct{ hostPath, nfs podSettings }

// podSettings are the settings for one kind of volume.
type podSettings struct {
	path               string // of the template; empty: the default one
	minimum, increment int    // seconds: at least, and for each GiB
	template           *corev1.Pod
}

func defaults() *settings {
	return &settings{hostPath: podSettings{minimum: 60, increment: 30}, nfs: podSettings{minimum: 300, increment: 30}}
}

func (s *settings) declare() []controllers.Setting {
	const fields = "controllers.persistentVolumeBinder."
	return []controllers.Setting{
		{
			Flag: "pv-recycler-pod-template-filepath-hostpath", Field: fields + "recyclerPodTemplateFilePathHostPath",
			Value: controllers.Value(&s.hostPath.path), Optional: true,
			Usage: "File with the pod that empties hostPath volumes whose reclaim policy is Recycle. Its first volume becomes the one to empty.",
		},
		{
			Flag: "pv-recycler-minimum-timeout-hostpath", Field: fields + "recyclerMinimumTimeoutHostPath",
			Value: controllers.Value(&s.hostPath.minimum), Usage: "Seconds that a pod that empties a hostPath volume has at least.",
		},
		{
			Flag: "pv-recycler-timeout-increment-hostpath", Field: fields + "recyclerIncrementTimeoutHostPath",
			Value: controllers.Value(&s.hostPath.increment), Usage: "Seconds for each GiB of a hostPath volume.",
		},
		{
			Flag: "pv-recycler-pod-template-filepath-nfs", Field: fields + "recyclerPodTemplateFilePathNFS",
			Value: controllers.Value(&s.nfs.path), Optional: true,
			Usage: "File with the pod that empties nfs volumes whose reclaim policy is Recycle. Its first volume becomes the one to empty.",
		},
		{
			Flag: "pv-recycler-minimum-timeout-nfs", Field: fields + "recyclerMinimumTimeoutNFS", Value: controllers.Value(&s.nfs.minimum),
			Usage: "Seconds that a pod that empties an nfs volume has at least.",
		},
		{
			Flag: "pv-recycler-increment-timeout-nfs", Field: fields + "recyclerIncrementTimeoutNFS", Value: controllers.Value(&s.nfs.increment),
			Usage: "Seconds for each GiB of an nfs volume.",
		},
	}
}

// check reads the templates.
func (s *settings) check() error {
	return errors.Join(s.hostPath.read(), s.nfs.read())
}

func (r *podSettings) read() error {
	if r.path == "" {
		return nil
	}
	text, err := os.ReadFile(r.path)
	if err != nil {
		return fmt.Errorf("read template of recycler pods: %w", err)
	}
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, &corev1.Pod{})
	if err != nil {
		return fmt.Errorf("failed decoding file: %s: %w", r.path, err) // upstream's words
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("template of recycler pods %s is a %T", r.path, obj)
	}
	if len(pod.Spec.Volumes) == 0 {
		return fmt.Errorf("pod specification (%s): %w", r.path, errNoVolumes) // upstream's words
	}
	r.template = pod
	return nil
}
