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
	"github.com/mortise-dev/mortise/resource"
)

// New makes the plug-in.
func New() admit.Plugin { return plugin{} }

type plugin struct{}

func (plugin) Name() string { return "DefaultIngressClass" }

// Mutate names the newest default class in an ingress that names none, neither in spec nor in the old annotation.
func (plugin) Mutate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	if !a.Is("networking.k8s.io", "ingresses", "") || a.Operation != admit.Create {
		return nil
	}
	ingress, _, ok := admit.ObjectsOf[*networkingv1.Ingress](a)
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("Expected Ingress resource, got: %v", a.Kind())) //nolint:staticcheck // upstream's wording
	}
	if _, named := ingress.Annotations["kubernetes.io/ingress.class"]; named || ingress.Spec.IngressClassName != nil {
		return nil
	}
	all, err := b.List(ctx, schema.GroupResource{Group: "networking.k8s.io", Resource: "ingressclasses"}, "")
	if err != nil && !apierrors.IsNotFound(err) {
		return admit.Forbidden(a, err)
	}
	var best *networkingv1.IngressClass
	for _, obj := range all {
		class, ok := obj.(*networkingv1.IngressClass)
		if ok && class.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true" && (best == nil || before(class, best)) {
			best = class
		}
	}
	if best != nil {
		name := best.Name
		ingress.Spec.IngressClassName = &name
	}
	return nil
}

// before prefers the newer, then the lower name.
func before(x, y *networkingv1.IngressClass) bool {
	if !x.CreationTimestamp.Equal(&y.CreationTimestamp) {
		return y.CreationTimestamp.Before(&x.CreationTimestamp)
	}
	return x.Name < y.Name
}
