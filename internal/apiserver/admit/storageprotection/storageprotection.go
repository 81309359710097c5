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

// finalizerOf returns the finalizer of the objects of a request; "" if there is none.
func finalizerOf(a *admit.Attributes) string {
	switch {
	case a.Operation != admit.Create:
	case a.Is("", "persistentvolumes", ""):
		return "kubernetes.io/pv-protection"
	case a.Is("", "persistentvolumeclaims", ""):
		return "kubernetes.io/pvc-protection"
	case a.Is("storage.k8s.io", "volumeattributesclasses", ""):
		return "kubernetes.io/vac-protection"
	}
	return ""
}

// Handles implements [admit.Filter].
func (plugin) Handles(a *admit.Attributes) bool { return finalizerOf(a) != "" }

// Mutate adds the finalizer on create.
func (p plugin) Mutate(_ context.Context, _ resource.Backend, a *admit.Attributes) error {
	if !p.Handles(a) {
		return nil
	}
	finalizer := finalizerOf(a)
	if present := a.Object.GetFinalizers(); !slices.Contains(present, finalizer) {
		a.Object.SetFinalizers(append(slices.Clone(present), finalizer))
	}
	return nil
}
