// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rbac

import (
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// ClusterRoleBinding describes cluster role bindings.
func ClusterRoleBinding() *resource.Descriptor {
	check := upstream.ClusterRoleBinding()
	return kind.Describe[rbacv1.ClusterRoleBinding](resource.Descriptor{
		Group:    "rbac.authorization.k8s.io",
		Resource: "clusterrolebindings",
		Kind:     "ClusterRoleBinding",
		Strategy: resource.Strategy{
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			CreateOnUpdate: true,
		},
	})
}
