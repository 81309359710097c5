// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rbac

import (
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// ClusterRole describes cluster roles.
func ClusterRole() *resource.Descriptor {
	check := upstream.ClusterRole()
	return kind.Describe[rbacv1.ClusterRole](resource.Descriptor{
		Group:    "rbac.authorization.k8s.io",
		Resource: "clusterroles",
		Kind:     "ClusterRole",
		Strategy: resource.Strategy{
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			CreateOnUpdate: true,
		},
	})
}
