// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package defaultclass finds the default class for objects that name none. The plug-ins DefaultIngressClass and
// DefaultStorageClass use it.
package defaultclass

import (
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// Find returns the name of the newest class that one of the annotations marks as the default with "true". Of several
// classes created in the same second it returns the first by name. It returns nil if there is none.
func Find(ctx context.Context, b resource.Backend, a *admit.Attributes, classes schema.GroupResource, annotations ...string) (*string,
	error) {
	all, err := b.List(ctx, classes, "")
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, admit.Forbidden(a, err)
	}
	var best resource.Object
	for _, class := range all {
		marked := slices.ContainsFunc(annotations, func(key string) bool { return class.GetAnnotations()[key] == "true" })
		if marked && (best == nil || before(class, best)) {
			best = class
		}
	}
	if best == nil {
		return nil, nil
	}
	return new(best.GetName()), nil
}

// before prefers the newer, then the lower name.
func before(x, y resource.Object) bool {
	if created, other := x.GetCreationTimestamp(), y.GetCreationTimestamp(); !created.Equal(&other) {
		return other.Before(&created)
	}
	return x.GetName() < y.GetName()
}
