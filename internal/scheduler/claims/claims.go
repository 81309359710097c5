// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package claims finds the claims of a pod's volumes: those that volumes name, and those that are created for its generic
// ephemeral volumes (KEP-1698).
package claims

import (
	"context"
	"iter"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// Of yields the names of the pod's claims, and whether each is created for the pod alone.
func Of(pod *corev1.Pod) iter.Seq2[string, bool] {
	return func(yield func(string, bool) bool) {
		for i := range pod.Spec.Volumes {
			name, own := "", false
			switch v := &pod.Spec.Volumes[i]; {
			case v.PersistentVolumeClaim != nil:
				name = v.PersistentVolumeClaim.ClaimName
			case v.Ephemeral != nil:
				name, own = ephemeral.VolumeClaimName(pod, v), true
			default:
				continue
			}
			if !yield(name, own) {
				return
			}
		}
	}
}

// Signer is the part of a plug-in that signs pods by their volumes.
type Signer struct{}

// SignPod signs the volumes.
func (Signer) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return []fwk.SignFragment{{Key: fwk.VolumesSignerName, Value: fwk.VolumesSigner(pod)}}, nil
}

// Uses reports whether the pod uses the claim.
func Uses(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	if claim == nil || claim.Namespace != pod.Namespace {
		return false
	}
	for name := range Of(pod) {
		if name == claim.Name {
			return true
		}
	}
	return false
}

// Changed is the queueing hint for an added or updated claim: it may help the pods that use it, and no others.
func Changed(_ klog.Logger, pod *corev1.Pod, _, newObj any) (fwk.QueueingHint, error) {
	if claim, ok := newObj.(*corev1.PersistentVolumeClaim); ok && !Uses(pod, claim) {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}
