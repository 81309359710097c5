// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package defaultstorageclass is the DefaultStorageClass plug-in: a claim that names no class gets the default one.
package defaultstorageclass

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// New makes the plug-in.
func New() admit.Plugin { return plugin{} }

type plugin struct{}

func (plugin) Name() string { return "DefaultStorageClass" }

// Mutate names the newest default class in a claim that names none.
func (plugin) Mutate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	if !a.Is("", "persistentvolumeclaims", "") || a.Operation != admit.Create {
		return nil
	}
	pvc, _, ok := admit.ObjectsOf[*corev1.PersistentVolumeClaim](a)
	if !ok {
		return nil
	}
	if _, named := pvc.Annotations[corev1.BetaStorageClassAnnotation]; named || pvc.Spec.StorageClassName != nil {
		return nil
	}
	all, err := b.List(ctx, schema.GroupResource{Group: "storage.k8s.io", Resource: "storageclasses"}, "")
	if err != nil && !apierrors.IsNotFound(err) {
		return admit.Forbidden(a, err)
	}
	var best *storagev1.StorageClass
	for _, obj := range all {
		if class, ok := obj.(*storagev1.StorageClass); ok && isDefault(class) && (best == nil || before(class, best)) {
			best = class
		}
	}
	if best != nil {
		name := best.Name
		pvc.Spec.StorageClassName = &name
	}
	return nil
}

func isDefault(class *storagev1.StorageClass) bool {
	return class.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" ||
		class.Annotations["storageclass.beta.kubernetes.io/is-default-class"] == "true"
}

// before prefers the newer, then the lower name.
func before(x, y *storagev1.StorageClass) bool {
	if !x.CreationTimestamp.Equal(&y.CreationTimestamp) {
		return y.CreationTimestamp.Before(&x.CreationTimestamp)
	}
	return x.Name < y.Name
}
