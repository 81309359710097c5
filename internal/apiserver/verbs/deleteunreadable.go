// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
)

// unsafely reports whether the client asks for the deletion of an object that cannot be read any more.
func unsafely(opts *metav1.DeleteOptions) bool {
	o := opts.IgnoreStoreReadErrorWithClusterBreakingPotential
	return o != nil && *o
}

// mayDeleteUnsafely checks the separate permission for such a deletion.
func (q *req) mayDeleteUnsafely(ctx context.Context) error {
	// kinds whose stores upstream wraps
	if q.kind.Group == "" && q.kind.Resource == "namespaces" || q.kind.Group == "rbac.authorization.k8s.io" {
		return apierrors.NewInternalError(errors.New(
			"no unsafe deleter provided, can not honor ignoreStoreReadErrorWithClusterBreakingPotential"))
	}
	if q.Authorize == nil {
		return nil
	}
	at := &authorize.Attributes{User: q.user, Verb: "unsafe-delete-ignore-read-errors", Group: q.kind.Group, Version: q.ver().Name,
		Resource: q.kind.Resource, Namespace: q.ns, Name: q.name, ResourceRequest: true, Path: q.r.URL.Path}
	at.Select(q.info.FieldSelector, q.info.LabelSelector)
	d, reason, err := q.Authorize.Authorize(ctx, at)
	if d == authorize.Allow {
		return nil
	}
	if err != nil && reason == "" {
		reason = err.Error()
	}
	return authorize.Forbidden(at, reason)
}
