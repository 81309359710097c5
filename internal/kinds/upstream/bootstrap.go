// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	scheduling "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// Policy is upstream's bootstrap policy: the roles that every cluster has, and who is bound to them. Roles and bindings
// of a namespace are by its name.
type Policy struct {
	ClusterRoles        []rbacv1.ClusterRole
	ClusterRoleBindings []rbacv1.ClusterRoleBinding
	Roles               map[string][]rbacv1.Role
	RoleBindings        map[string][]rbacv1.RoleBinding
}

// BootstrapPolicy makes a policy that is the caller's own, save the roles and bindings of namespaces.
func BootstrapPolicy() Policy {
	return Policy{
		ClusterRoles:        append(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()...),
		ClusterRoleBindings: append(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()...),
		Roles:               bootstrappolicy.NamespaceRoles(),
		RoleBindings:        bootstrappolicy.NamespaceRoleBindings(),
	}
}

// SystemPriorityClasses are the priority classes that every cluster has; shared, not to be changed.
func SystemPriorityClasses() []*schedulingv1.PriorityClass { return scheduling.SystemPriorityClasses() }
