// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package defaultingressclass is the DefaultIngressClass plug-in: an ingress that names no class gets the default one.
package defaultingressclass

import (
	"context"
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/defaultclass"
	"github.com/mortise-dev/mortise/resource"
)

// New makes the plug-in.
func New() admit.Plugin { return plugin{} }

type plugin struct{}

func (plugin) Name() string { return "DefaultIngressClass" }

// Handles implements [admit.Filter].
func (plugin) Handles(a *admit.Attributes) bool {
	return a.Is("networking.k8s.io", "ingresses", "") && a.Operation == admit.Create
}

// Mutate sets the newest default class on an ingress that names none, neither in its spec nor in the old annotation.
func (p plugin) Mutate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	if !p.Handles(a) {
		return nil
	}
	ingress, _, ok := admit.ObjectsOf[*networkingv1.Ingress](a)
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("Expected Ingress resource, got: %v", a.Kind())) //nolint:staticcheck // upstream's wording
	}
	if _, named := ingress.Annotations["kubernetes.io/ingress.class"]; named || ingress.Spec.IngressClassName != nil {
		return nil
	}
	name, err := defaultclass.Find(ctx, b, a, schema.GroupResource{Group: "networking.k8s.io", Resource: "ingressclasses"},
		networkingv1.AnnotationIsDefaultIngressClass)
	if name != nil {
		ingress.Spec.IngressClassName = name
	}
	return err
}
