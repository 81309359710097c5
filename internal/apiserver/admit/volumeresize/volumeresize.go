// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package volumeresize is the PersistentVolumeClaimResize plug-in: a claim may request more storage only once it is bound,
// and if its class allows expansion.
package volumeresize

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// New makes the plug-in.
func New() admit.Plugin { return plugin{} }

type plugin struct{}

func (plugin) Name() string { return "PersistentVolumeClaimResize" }

// Handles implements [admit.Filter].
func (plugin) Handles(a *admit.Attributes) bool {
	return a.Is("", "persistentvolumeclaims", "") && a.Operation == admit.Update
}

// Validate rejects expansions of unbound claims and of claims whose class does not allow expansion.
func (p plugin) Validate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	if !p.Handles(a) {
		return nil
	}
	pvc, old, ok := admit.ObjectsOf[*corev1.PersistentVolumeClaim](a)
	if !ok || old == nil {
		return nil
	}
	size, oldSize := pvc.Spec.Resources.Requests.Storage(), old.Spec.Resources.Requests.Storage()
	if size.Cmp(*oldSize) <= 0 {
		return nil
	}
	if old.Status.Phase != corev1.ClaimBound {
		return admit.Forbidden(a, errors.New("Only bound persistent volume claims can be expanded")) //nolint:staticcheck // upstream's wording
	}
	if class := className(pvc); class == "" || class != className(old) || !expandable(ctx, b, class) {
		return admit.Forbidden(a, errors.New(
			"only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"))
	}
	return nil
}

func expandable(ctx context.Context, b resource.Backend, name string) bool {
	obj, err := b.Get(ctx, schema.GroupResource{Group: "storage.k8s.io", Resource: "storageclasses"}, "", name)
	if err != nil {
		return false
	}
	class, ok := obj.(*storagev1.StorageClass)
	return ok && class.AllowVolumeExpansion != nil && *class.AllowVolumeExpansion
}

func className(pvc *corev1.PersistentVolumeClaim) string {
	if name, ok := pvc.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return name
	}
	if pvc.Spec.StorageClassName != nil {
		return *pvc.Spec.StorageClassName
	}
	return ""
}
