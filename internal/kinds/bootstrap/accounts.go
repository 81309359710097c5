// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Account is the service account of a controller that Kubernetes does not have, with its role.
type Account struct {
	Name  string // in kube-system
	Rules []rbacv1.PolicyRule
}

// role returns the account's role, in the form of the roles of Kubernetes' own controllers.
func (a Account) role() []Object {
	meta := metav1.ObjectMeta{
		Name:        "system:controller:" + a.Name,
		Labels:      map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"},
		Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
	}
	return []Object{
		of(rbacv1.GroupName, "clusterroles", &rbacv1.ClusterRole{ObjectMeta: meta, Rules: a.Rules}),
		of(rbacv1.GroupName, "clusterrolebindings", &rbacv1.ClusterRoleBinding{
			ObjectMeta: *meta.DeepCopy(),
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: a.Name}},
		}),
	}
}

// kubeletClient allows the user name that API servers use towards nodes to use them: agents that check access by access reviews admit
// requests by this binding.
func kubeletClient() Object {
	return of(rbacv1.GroupName, "clusterrolebindings", &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "mortise:kubelet-api-admin",
			Labels:      map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"},
			Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
		},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:kubelet-api-admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "kube-apiserver-kubelet-client"}},
	})
}

// metricsReader is the role that metrics-server's manifest has as system:aggregated-metrics-reader, under a name of its own: both can
// exist.
func metricsReader() Object {
	return of(rbacv1.GroupName, "clusterroles", &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{
			Name: "mortise:aggregated-metrics-reader",
			Labels: map[string]string{
				"kubernetes.io/bootstrapping":                  "rbac-defaults",
				"rbac.authorization.k8s.io/aggregate-to-view":  "true",
				"rbac.authorization.k8s.io/aggregate-to-edit":  "true",
				"rbac.authorization.k8s.io/aggregate-to-admin": "true",
			},
			Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
		},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{"metrics.k8s.io"}, Resources: []string{"pods", "nodes"}, Verbs: []string{"get", "list", "watch"},
		}},
	})
}
