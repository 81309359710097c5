// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package defaultstorageclass is the DefaultStorageClass plug-in: a claim that names no class gets the default one.
package defaultstorageclass

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/defaultclass"
	"github.com/mortise-dev/mortise/resource"
)

// New makes the plug-in.
func New() admit.Plugin { return plugin{} }

type plugin struct{}

func (plugin) Name() string { return "DefaultStorageClass" }

// Handles implements [admit.Filter].
func (plugin) Handles(a *admit.Attributes) bool {
	return a.Is("", "persistentvolumeclaims", "") && a.Operation == admit.Create
}

// Mutate sets the newest default class on a claim that names none.
func (p plugin) Mutate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	if !p.Handles(a) {
		return nil
	}
	pvc, _, ok := admit.ObjectsOf[*corev1.PersistentVolumeClaim](a)
	if !ok {
		return nil
	}
	if _, named := pvc.Annotations[corev1.BetaStorageClassAnnotation]; named || pvc.Spec.StorageClassName != nil {
		return nil
	}
	name, err := defaultclass.Find(ctx, b, a, schema.GroupResource{Group: "storage.k8s.io", Resource: "storageclasses"},
		"storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")
	if name != nil {
		pvc.Spec.StorageClassName = name
	}
	return err
}
