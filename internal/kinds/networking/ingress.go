// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package networking describes the kinds of the group networking.k8s.io, a file each.
package networking

import (
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// Ingress describes ingresses, with the subresource status.
func Ingress() *resource.Descriptor {
	check := upstream.Ingress()
	status := kind.Status(func(i, old *networkingv1.Ingress) { i.Spec = old.Spec }, check.Status)
	status.Strategy.Warn = kind.Warn(statusWarnings)
	return kind.Describe[*networkingv1.Ingress](resource.Descriptor{
		Group:      "networking.k8s.io",
		Resource:   "ingresses",
		Kind:       "Ingress",
		ShortNames: []string{"ing"},
		Namespaced: true,
		Prefix:     "ingress",
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(i *networkingv1.Ingress) {
				i.Status = networkingv1.IngressStatus{}
				i.Generation = 1
			}),
			PrepareUpdate: kind.OnUpdate(func(i, old *networkingv1.Ingress) {
				i.Status = old.Status
				if !kind.Same(i.Spec, old.Spec) {
					i.Generation = old.Generation + 1
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Warn: kind.Warn(func(i, old *networkingv1.Ingress) []string {
				if _, ok := i.Annotations[ingressClass]; old == nil && ok && i.Spec.IngressClassName == nil {
					return []string{fmt.Sprintf("annotation %q is deprecated, please use 'spec.ingressClassName' instead", ingressClass)}
				}
				return nil
			}),
		},
		Subresources: []resource.Subresource{status},
	})
}

// ingressClass is the deprecated annotation for an ingress's class.
const ingressClass = "kubernetes.io/ingress.class"

// statusWarnings returns warnings about malformed addresses.
func statusWarnings(i, _ *networkingv1.Ingress) []string {
	var out []string
	for n, in := range i.Status.LoadBalancer.Ingress {
		if in.IP != "" {
			out = append(out, validation.GetWarningsForIP(field.NewPath("status", "loadBalancer", "ingress").Index(n), in.IP)...)
		}
	}
	return out
}
