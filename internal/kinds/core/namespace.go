// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package core describes the kinds of the core group, a file each. Each function returns one descriptor; only [Service] has state: the
// allocated IPs and ports.
package core

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// Namespace describes namespaces, with the subresources finalize and status.
func Namespace() *resource.Descriptor {
	check := upstream.Namespace()
	finalize := kind.Window("finalize", func(obj, old *corev1.Namespace) {
		obj.Status = old.Status
		labelWithName(obj)
	}, upstream.NamespaceFinalize())
	finalize.Verbs = []string{"update"}
	return kind.Describe[*corev1.Namespace](resource.Descriptor{
		Resource:   "namespaces",
		Kind:       "Namespace",
		ShortNames: []string{"ns"},
		Verbs:      []string{"create", "delete", "get", "list", "patch", "update", "watch"},
		FieldNames: []string{"status.phase"},
		Fields: kind.Fields(func(ns *corev1.Namespace) fields.Set {
			return fields.Set{"status.phase": string(ns.Status.Phase)}
		}),
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(ns *corev1.Namespace) {
				ns.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
				if !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
					ns.Spec.Finalizers = append(ns.Spec.Finalizers, corev1.FinalizerKubernetes)
				}
				labelWithName(ns)
			}),
			PrepareUpdate: kind.OnUpdate(func(ns, old *corev1.Namespace) {
				ns.Spec.Finalizers = old.Spec.Finalizers
				ns.Status = old.Status
				labelWithName(ns)
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			ReturnDeleted:  true,
			Finalizers: func(obj resource.Object) []string {
				ns, ok := obj.(*corev1.Namespace)
				if !ok {
					return nil
				}
				names := make([]string, len(ns.Spec.Finalizers))
				for i, f := range ns.Spec.Finalizers {
					names[i] = string(f)
				}
				return names
			},
			BeginDelete: func(obj resource.Object) {
				if ns, ok := obj.(*corev1.Namespace); ok {
					ns.Status.Phase = corev1.NamespaceTerminating
				}
			},
		},
		Subresources: []resource.Subresource{
			finalize,
			kind.Status(func(obj, old *corev1.Namespace) {
				obj.Spec = old.Spec
				labelWithName(obj)
			}, check.Status),
		},
	})
}

// labelWithName adds the label by which selectors name a namespace; defaulting cannot do so for a generated name.
func labelWithName(ns *corev1.Namespace) {
	if ns.Name == "" {
		return
	}
	if ns.Labels == nil {
		ns.Labels = map[string]string{}
	}
	ns.Labels[corev1.LabelMetadataName] = ns.Name
}
