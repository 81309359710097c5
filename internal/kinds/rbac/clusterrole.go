// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rbac

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// ClusterRole describes cluster roles.
func ClusterRole(a Authority) *resource.Descriptor {
	check := upstream.ClusterRole()
	return kind.Describe[*rbacv1.ClusterRole](resource.Descriptor{
		Group:    "rbac.authorization.k8s.io",
		Resource: "clusterroles",
		Kind:     "ClusterRole",
		Strategy: resource.Strategy{
			Authorize: func(ctx context.Context, obj, old resource.Object) error {
				r := obj.(*rbacv1.ClusterRole)
				before, _ := old.(*rbacv1.ClusterRole)
				return a.role(ctx, "clusterroles", obj, old, r.Rules, aggregates(r) || aggregates(before))
			},
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			CreateOnUpdate: true,
		},
	})
}

// aggregates reports whether a role's rules are aggregated from others.
func aggregates(r *rbacv1.ClusterRole) bool {
	return r != nil && r.AggregationRule != nil && len(r.AggregationRule.ClusterRoleSelectors) > 0
}
