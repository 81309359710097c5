// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// uninitialized is the taint of nodes that wait for their cloud.
const uninitialized = "node.cloudprovider.kubernetes.io/uninitialized"

// cloud initializes nodes as a cloud controller manager does: it sets the provider's ID, the zone and the type, and removes the taint. A
// real cloud is written to k8s.io/cloud-provider, which also deletes nodes whose machines are gone, and makes routes and load balancers.
type cloud struct{ client.Client }

// Reconcile initializes a node.
func (c *cloud) Reconcile(ctx context.Context, r ctrl.Request) (ctrl.Result, error) {
	var node corev1.Node
	if err := c.Get(ctx, r.NamespacedName, &node); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	tainted := func(t corev1.Taint) bool { return t.Key == uninitialized }
	if !slices.ContainsFunc(node.Spec.Taints, tainted) {
		return ctrl.Result{}, nil
	}
	node.Spec.ProviderID = "example://" + node.Name // cannot change later
	if node.Labels == nil {
		node.Labels = map[string]string{}
	}
	node.Labels[corev1.LabelTopologyZone] = "example-a"
	node.Labels[corev1.LabelInstanceTypeStable] = "example.small"
	node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, tainted)
	return ctrl.Result{}, c.Update(ctx, &node)
}
