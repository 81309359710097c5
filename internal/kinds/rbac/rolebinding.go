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

// RoleBinding describes role bindings.
func RoleBinding(a Authority) *resource.Descriptor {
	check := upstream.RoleBinding()
	return kind.Describe[*rbacv1.RoleBinding](resource.Descriptor{
		Group:      "rbac.authorization.k8s.io",
		Resource:   "rolebindings",
		Kind:       "RoleBinding",
		Namespaced: true,
		Strategy: resource.Strategy{
			Authorize: func(ctx context.Context, obj, old resource.Object) error {
				return a.binding(ctx, "rolebindings", obj, old, obj.(*rbacv1.RoleBinding).RoleRef)
			},
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			CreateOnUpdate: true,
		},
	})
}
