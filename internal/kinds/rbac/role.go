// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package rbac describes the kinds of the group rbac.authorization.k8s.io, a file each.
package rbac

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// Role describes roles.
func Role(a Authority) *resource.Descriptor {
	check := upstream.Role()
	return kind.Describe[*rbacv1.Role](resource.Descriptor{
		Group:      "rbac.authorization.k8s.io",
		Resource:   "roles",
		Kind:       "Role",
		Namespaced: true,
		Strategy: resource.Strategy{
			Authorize: func(ctx context.Context, obj, old resource.Object) error {
				return a.role(ctx, "roles", obj, old, obj.(*rbacv1.Role).Rules, false)
			},
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			CreateOnUpdate: true,
		},
	})
}
