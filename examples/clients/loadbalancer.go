// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// loadBalancer serves Services of the class example.com/static: it publishes an address. A real one lets that address lead to the Service.
type loadBalancer struct{ client.Client }

// Reconcile publishes the address.
func (b *loadBalancer) Reconcile(ctx context.Context, r ctrl.Request) (ctrl.Result, error) {
	var s corev1.Service
	if err := b.Get(ctx, r.NamespacedName, &s); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	class := s.Spec.LoadBalancerClass
	ours := s.Spec.Type == corev1.ServiceTypeLoadBalancer && class != nil && *class == "example.com/static"
	if !ours || len(s.Status.LoadBalancer.Ingress) > 0 {
		return ctrl.Result{}, nil
	}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.7"}}
	return ctrl.Result{}, b.Status().Update(ctx, &s)
}
