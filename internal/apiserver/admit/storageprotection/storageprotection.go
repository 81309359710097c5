// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package storageprotection is the StorageObjectInUseProtection plug-in: it adds the finalizer to volumes, claims and
// volume attribute classes that protects them while they are in use.
package storageprotection

import (
	"context"
	"slices"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// New makes the plug-in.
func New() admit.Plugin { return plugin{} }

type plugin struct{}

func (plugin) Name() string { return "StorageObjectInUseProtection" }

// Mutate adds the finalizer on create.
func (plugin) Mutate(_ context.Context, _ resource.Backend, a *admit.Attributes) error {
	if a.Operation != admit.Create {
		return nil
	}
	var finalizer string
	switch {
	case a.Is("", "persistentvolumes", ""):
		finalizer = "kubernetes.io/pv-protection"
	case a.Is("", "persistentvolumeclaims", ""):
		finalizer = "kubernetes.io/pvc-protection"
	case a.Is("storage.k8s.io", "volumeattributesclasses", ""):
		finalizer = "kubernetes.io/vac-protection"
	default:
		return nil
	}
	if present := a.Object.GetFinalizers(); !slices.Contains(present, finalizer) {
		a.Object.SetFinalizers(append(slices.Clone(present), finalizer))
	}
	return nil
}
