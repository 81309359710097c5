// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package namespacelifecycle is the NamespaceLifecycle plug-in: it rejects creates in a namespace that does not exist or is
// terminating, and the deletion of the system's namespaces.
package namespacelifecycle

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// New makes the plug-in.
func New() admit.Plugin { return plugin{} }

type plugin struct{}

func (plugin) Name() string { return "NamespaceLifecycle" }

// Mutate decides, and changes nothing. It runs with the mutators so that a missing namespace is reported before errors
// of the object.
func (plugin) Mutate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	if a.Descriptor.Group == "" && a.Descriptor.Resource == "namespaces" {
		if a.Operation == admit.Delete && immortal(a.Name) {
			return apierrors.NewForbidden(a.Descriptor.GroupResource(), a.Name, errors.New("this namespace may not be deleted"))
		}
		return nil
	}
	if a.Namespace == "" || a.Operation != admit.Create || isAccessReview(a) {
		return nil
	}
	obj, err := b.Get(ctx, schema.GroupResource{Resource: "namespaces"}, "", a.Namespace)
	if apierrors.IsNotFound(err) {
		return err
	}
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	ns, ok := obj.(*corev1.Namespace)
	if !ok || ns.Status.Phase != corev1.NamespaceTerminating {
		return nil
	}
	return terminating(a)
}

func terminating(a *admit.Attributes) error {
	err := admit.Forbidden(a, fmt.Errorf("unable to create new content in namespace %s because it is being terminated", a.Namespace))
	var status *apierrors.StatusError
	if errors.As(err, &status) {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{
			Type:    corev1.NamespaceTerminatingCause,
			Message: fmt.Sprintf("namespace %s is being terminated", a.Namespace),
			Field:   "metadata.namespace",
		})
	}
	return err
}

// immortal reports whether kube-apiserver 1.37 protects a namespace. It does not protect kube-node-lease, which is
// created again.
func immortal(name string) bool {
	return name == metav1.NamespaceDefault || name == metav1.NamespaceSystem || name == metav1.NamespacePublic
}

// isAccessReview reports whether the request is an access review. Its response must not reveal whether the namespace
// exists.
func isAccessReview(a *admit.Attributes) bool {
	return a.Descriptor.Group == "authorization.k8s.io" && a.Descriptor.Resource == "localsubjectaccessreviews"
}
