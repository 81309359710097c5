// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package namespaceexists is the NamespaceExists plug-in: it rejects writes in a namespace that does not exist.
// NamespaceLifecycle does this for creates; this plug-in, off by default, also for updates and deletions.
package namespaceexists

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// New makes the plug-in.
func New() admit.Plugin { return plugin{} }

type plugin struct{}

func (plugin) Name() string { return "NamespaceExists" }

// Validate rejects requests in a namespace that does not exist.
func (plugin) Validate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	if a.Operation == admit.Connect || a.Namespace == "" || a.Kind().GroupKind() == (schema.GroupKind{Kind: "Namespace"}) {
		return nil
	}
	_, err := b.Get(ctx, schema.GroupResource{Resource: "namespaces"}, "", a.Namespace)
	if err == nil || apierrors.IsNotFound(err) {
		return err
	}
	return apierrors.NewInternalError(err)
}
