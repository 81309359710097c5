// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/podspec"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// ReplicationController describes replication controllers, with the subresources scale and status. The server orphans their pods on
// deletion unless a client requests otherwise.
func ReplicationController() *resource.Descriptor {
	check := upstream.ReplicationController()
	return kind.Describe[*corev1.ReplicationController](resource.Descriptor{
		Resource:   "replicationcontrollers",
		Kind:       "ReplicationController",
		ShortNames: []string{"rc"},
		Categories: []string{"all"},
		Namespaced: true,
		Prefix:     "controllers",
		FieldNames: []string{"status.replicas"},
		Fields: kind.Fields(func(rc *corev1.ReplicationController) fields.Set {
			return fields.Set{"status.replicas": strconv.Itoa(int(rc.Status.Replicas))}
		}),
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(rc *corev1.ReplicationController) {
				rc.Status = corev1.ReplicationControllerStatus{}
				rc.Generation = 1
				podspec.DropOffTemplate(rc.Spec.Template, nil)
			}),
			PrepareUpdate: kind.OnUpdate(func(rc, old *corev1.ReplicationController) {
				rc.Status = old.Status
				podspec.DropOffTemplate(rc.Spec.Template, old.Spec.Template)
				if !kind.Same(rc.Spec, old.Spec) {
					rc.Generation = old.Generation + 1
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Warn: kind.Warn(func(rc, old *corev1.ReplicationController) []string {
				path := field.NewPath("spec", "template")
				if old == nil {
					return append(kind.LabelNameWarning(rc.Name), podspec.TemplateWarnings(path, rc.Spec.Template)...)
				}
				if rc.Generation == old.Generation {
					return nil
				}
				// These warnings are about the old template, not the new one, as upstream's are.
				return podspec.TemplateWarnings(path, old.Spec.Template)
			}),
			GarbageCollection: metav1.DeletePropagationOrphan,
		},
		Subresources: []resource.Subresource{
			kind.Scale("", "replicationcontrollers", func(rc *corev1.ReplicationController) (int32, int32, string, error) {
				return kind.Count(rc.Spec.Replicas), rc.Status.Replicas, labels.Set(rc.Spec.Selector).AsSelector().String(), nil
			}, func(rc *corev1.ReplicationController) **int32 { return &rc.Spec.Replicas }),
			kind.Status(func(rc, old *corev1.ReplicationController) { rc.Spec = old.Spec }, check.Status),
		},
	})
}
