// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/store"
)

// unsafely says whether a client asks to have an object deleted that cannot be read any more, come what may.
func unsafely(opts *metav1.DeleteOptions) bool {
	o := opts.IgnoreStoreReadErrorWithClusterBreakingPotential
	return o != nil && *o
}

// mayDeleteUnsafely asks for the permission of its own that it takes.
func (q *req) mayDeleteUnsafely(ctx context.Context) error {
	if q.kind.Group == "" && q.kind.Resource == "namespaces" || q.kind.Group == "rbac.authorization.k8s.io" { // kinds whose stores upstream wraps
		return apierrors.NewInternalError(errors.New("no unsafe deleter provided, can not honor ignoreStoreReadErrorWithClusterBreakingPotential"))
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

// deleteUnreadable takes a record away whose value does not decode. One that does is kept: there is a better way for it.
func (a *API) deleteUnreadable(ctx context.Context, d *deletion) error {
	key := d.kind.Key(d.ns, d.name)
	for {
		rec, _, err := a.Store.Get(ctx, key)
		if err != nil {
			return err
		}
		if rec == nil {
			return apierrors.NewNotFound(d.kind.GroupResource(), d.name)
		}
		if _, err := d.kind.Forms(rec); err == nil {
			return apierrors.NewConflict(d.kind.GroupResource(), d.name,
				invalidObject(key, "unsafe deletion is not allowed because the object is decodable from storage"))
		}
		if len(d.opts.DryRun) > 0 {
			return nil
		}
		revision, err := a.Store.Delete(ctx, key, rec.Revision)
		if conflict := (*store.ConflictError)(nil); errors.As(err, &conflict) && ctx.Err() == nil {
			continue
		}
		if err == nil {
			a.applied(ctx, d.kind, revision)
		}
		return err
	}
}
