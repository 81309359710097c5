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

// ClusterRoleBinding describes cluster role bindings.
func ClusterRoleBinding(a Authority) *resource.Descriptor {
	check := upstream.ClusterRoleBinding()
	return kind.Describe[*rbacv1.ClusterRoleBinding](resource.Descriptor{
		Group:    "rbac.authorization.k8s.io",
		Resource: "clusterrolebindings",
		Kind:     "ClusterRoleBinding",
		Strategy: resource.Strategy{
			Authorize: func(ctx context.Context, obj, old resource.Object) error {
				return a.binding(ctx, "clusterrolebindings", obj, old, obj.(*rbacv1.ClusterRoleBinding).RoleRef)
			},
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			CreateOnUpdate: true,
		},
	})
}
