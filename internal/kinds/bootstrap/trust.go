// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// trustController is the controller that Kubernetes does not have; its service account and its role are called after it.
const trustController = "webhook-trust-controller"

// trusting is the role of the controller that gives webhooks certificates, in the form of those of Kubernetes' own controllers: it keeps
// secrets, and fills what configurations trust. What it follows is followed for all controllers.
func trusting() []Object {
	meta := metav1.ObjectMeta{
		Name:        "system:controller:" + trustController,
		Labels:      map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"},
		Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
	}
	rule := func(group string, verbs []string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
	}
	change := []string{"get", "update"}
	return []Object{
		of(rbacv1.GroupName, "clusterroles", &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
			rule("", []string{"create", "get", "update"}, "secrets"),
			rule("", []string{"create", "patch", "update"}, "events"),
			rule("events.k8s.io", []string{"create", "patch", "update"}, "events"),
			rule("admissionregistration.k8s.io", change, "mutatingwebhookconfigurations", "validatingwebhookconfigurations"),
			rule("apiextensions.k8s.io", change, "customresourcedefinitions"),
			rule("apiregistration.k8s.io", change, "apiservices"),
		}}),
		of(rbacv1.GroupName, "clusterrolebindings", &rbacv1.ClusterRoleBinding{
			ObjectMeta: *meta.DeepCopy(),
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: trustController}},
		}),
		kubeletClient(),
	}
}

// kubeletClient lets the name that API servers go by towards nodes use them: agents that ask for access reviews admit it by this.
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
