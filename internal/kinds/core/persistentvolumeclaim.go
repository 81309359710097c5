// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/podspec"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// PersistentVolumeClaim describes persistent volume claims, with the subresource status.
func PersistentVolumeClaim() *resource.Descriptor {
	check := upstream.PersistentVolumeClaim()
	return kind.Describe[*corev1.PersistentVolumeClaim](resource.Descriptor{
		Resource:   "persistentvolumeclaims",
		Kind:       "PersistentVolumeClaim",
		ShortNames: []string{"pvc"},
		Namespaced: true,
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(c *corev1.PersistentVolumeClaim) {
				c.Status = corev1.PersistentVolumeClaimStatus{}
				dataSources(&c.Spec, &corev1.PersistentVolumeClaimSpec{})
			}),
			PrepareUpdate: kind.OnUpdate(func(c, old *corev1.PersistentVolumeClaim) {
				c.Status = old.Status
				dataSources(&c.Spec, &old.Spec)
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			ReturnDeleted:  true,
			Warn: kind.Warn(func(c, _ *corev1.PersistentVolumeClaim) []string {
				var out []string
				if _, ok := c.Annotations[corev1.BetaStorageClassAnnotation]; ok {
					out = append(out, fmt.Sprintf(`%s: deprecated since v1.8; use "storageClassName" attribute instead`,
						field.NewPath("metadata", "annotations").Key(corev1.BetaStorageClassAnnotation)))
				}
				return append(out, podspec.ClaimWarnings(field.NewPath("spec"), &c.Spec)...)
			}),
		},
		Subresources: []resource.Subresource{
			kind.Status(func(c, old *corev1.PersistentVolumeClaim) {
				c.Spec = old.Spec
				if !upstream.Gate("CSIVolumeHealth") && old.Status.HealthStatus == nil {
					c.Status.HealthStatus = nil
				}
			}, check.Status),
		},
	})
}

// dataSources synchronizes the older and the newer field for a claim's source, and drops sources that the older one never allowed, unless
// the old claim has one.
func dataSources(spec, old *corev1.PersistentVolumeClaimSpec) {
	if r := spec.DataSourceRef; r != nil && r.Namespace != nil && *r.Namespace != "" && old.DataSourceRef == nil &&
		!upstream.Gate("CrossNamespaceVolumeDataSource") {
		spec.DataSourceRef = nil
	}
	if old.DataSource == nil && old.DataSourceRef == nil && spec.DataSourceRef == nil && !claimOrSnapshot(spec.DataSource) {
		spec.DataSource = nil
	}
	switch s, r := spec.DataSource, spec.DataSourceRef; {
	case s != nil && r == nil:
		spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: clone(s.APIGroup), Kind: s.Kind, Name: s.Name}
	case r != nil && s == nil && (r.Namespace == nil || *r.Namespace == ""):
		spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: clone(r.APIGroup), Kind: r.Kind, Name: r.Name}
	}
}

func claimOrSnapshot(s *corev1.TypedLocalObjectReference) bool {
	if s == nil {
		return false
	}
	group := ""
	if s.APIGroup != nil {
		group = *s.APIGroup
	}
	return s.Kind == "PersistentVolumeClaim" && group == "" || s.Kind == "VolumeSnapshot" && group == "snapshot.storage.k8s.io"
}

func clone(s *string) *string {
	if s == nil {
		return nil
	}
	out := *s
	return &out
}
