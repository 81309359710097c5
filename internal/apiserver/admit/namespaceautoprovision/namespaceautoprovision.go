// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package namespaceautoprovision is the NamespaceAutoProvision plug-in: creating an object in a namespace that does not
// exist creates the namespace too. It is off by default.
package namespaceautoprovision

import (
	"context"

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

func (plugin) Name() string { return "NamespaceAutoProvision" }

// Mutate creates the namespace of a new object, unless the request is a dry run.
func (plugin) Mutate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	if a.Operation != admit.Create || a.DryRun || a.Namespace == "" || a.Kind().GroupKind() == (schema.GroupKind{Kind: "Namespace"}) {
		return nil
	}
	namespaces := schema.GroupResource{Resource: "namespaces"}
	_, err := b.Get(ctx, namespaces, "", a.Namespace)
	if apierrors.IsNotFound(err) {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: a.Namespace}}
		if _, err = b.Create(ctx, namespaces, ns, false); apierrors.IsAlreadyExists(err) {
			return nil
		}
	}
	if err != nil {
		return admit.Forbidden(a, err)
	}
	return nil
}
