// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/podspec"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// PersistentVolume describes persistent volumes, with the subresource status.
func PersistentVolume() *resource.Descriptor {
	check := upstream.PersistentVolume()
	return kind.Describe[*corev1.PersistentVolume](resource.Descriptor{
		Resource:   "persistentvolumes",
		Kind:       "PersistentVolume",
		ShortNames: []string{"pv"},
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(pv *corev1.PersistentVolume) {
				now := metav1.Now()
				pv.Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumePending, LastPhaseTransitionTime: &now}
			}),
			PrepareUpdate:  kind.OnUpdate(func(pv, old *corev1.PersistentVolume) { pv.Status = old.Status }),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			ReturnDeleted:  true,
			Warn:           kind.Warn(func(pv, _ *corev1.PersistentVolume) []string { return volumeWarnings(pv) }),
		},
		Subresources: []resource.Subresource{
			kind.Status(func(pv, old *corev1.PersistentVolume) {
				pv.Spec = old.Spec
				now, was := &pv.Status, &old.Status
				switch {
				case now.Phase == was.Phase && now.LastPhaseTransitionTime == nil:
					now.LastPhaseTransitionTime = was.LastPhaseTransitionTime
				case now.Phase != was.Phase && (now.LastPhaseTransitionTime == nil || now.LastPhaseTransitionTime.Equal(was.LastPhaseTransitionTime)):
					t := metav1.Now()
					now.LastPhaseTransitionTime = &t
				}
			}, check.Status),
		},
	})
}

// volumeWarnings returns warnings about deprecated annotations, labels, policies and volume types.
func volumeWarnings(pv *corev1.PersistentVolume) []string {
	var out []string
	add := func(path *field.Path, text string) { out = append(out, fmt.Sprintf("%s: %s", path, text)) }
	for _, a := range []struct{ key, text string }{
		{"volume.beta.kubernetes.io/storage-class", `deprecated since v1.8; use "storageClassName" attribute instead`},
		{"volume.beta.kubernetes.io/mount-options", `deprecated since v1.31; use "mountOptions" attribute instead`},
	} {
		if _, ok := pv.Annotations[a.key]; ok {
			add(field.NewPath("metadata", "annotations").Key(a.key), a.text)
		}
	}
	spec := field.NewPath("spec")
	if pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		add(spec.Child("persistentVolumeReclaimPolicy"),
			"The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.")
	}
	if n := pv.Spec.NodeAffinity; n != nil && n.Required != nil {
		for i, term := range n.Required.NodeSelectorTerms {
			out = append(out, podspec.NodeTermWarnings(term, false, spec.Child("nodeAffinity", "required", "nodeSelectorTerms").Index(i))...)
		}
	}
	for _, v := range []struct {
		set        bool
		name, text string
	}{
		{pv.Spec.CephFS != nil, "cephfs", "deprecated in v1.28, non-functional in v1.31+"},
		{pv.Spec.PhotonPersistentDisk != nil, "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"},
		{pv.Spec.ScaleIO != nil, "scaleIO", "deprecated in v1.16, non-functional in v1.22+"},
		{pv.Spec.StorageOS != nil, "storageOS", "deprecated in v1.22, non-functional in v1.25+"},
		{pv.Spec.Glusterfs != nil, "glusterfs", "deprecated in v1.25, non-functional in v1.26+"},
		{pv.Spec.RBD != nil, "rbd", "deprecated in v1.28, non-functional in v1.31+"},
	} {
		if v.set {
			add(spec.Child(v.name), v.text)
		}
	}
	return out
}
