// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// ByPersistentVolumeClaim is the index of pods by the claims that their volumes name or stand for, each NAMESPACE/NAME.
const ByPersistentVolumeClaim = "persistentvolumeclaim"

// IndexByPersistentVolumeClaim adds the index to the informer of pods unless another controller has added it.
func IndexByPersistentVolumeClaim(pods cache.SharedIndexInformer) error {
	return controllers.Index(pods, ByPersistentVolumeClaim, func(obj any) ([]string, error) {
		var names []string
		if pod, ok := obj.(*corev1.Pod); ok {
			for i := range pod.Spec.Volumes {
				if name := ClaimName(pod, &pod.Spec.Volumes[i]); name != "" {
					names = append(names, pod.Namespace+"/"+name)
				}
			}
		}
		return names, nil
	})
}

// ClaimName returns the PersistentVolumeClaim that a pod's volume names or stands for; empty if none.
func ClaimName(pod *corev1.Pod, volume *corev1.Volume) string {
	switch {
	case volume.PersistentVolumeClaim != nil:
		return volume.PersistentVolumeClaim.ClaimName
	case volume.Ephemeral != nil:
		return ephemeral.VolumeClaimName(pod, volume)
	}
	return ""
}
