// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/internal/apiserver/registry"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
)

// update replaces an object, or creates it where the kind allows that. With a subresource that has its own strategy it
// replaces that part.
func update(q *req) error {
	if err := q.negotiate(); err != nil {
		return err
	}
	opts, err := q.updateOptions()
	if err != nil {
		return err
	}
	obj, err := q.object(opts.FieldValidation)
	if err != nil {
		return err
	}
	if err := samePath(q, obj); err != nil {
		return err
	}
	q.dedupOwners(obj, false)
	ctx, cancel := q.writing()
	defer cancel()
	c := q.alteration(toCreate(opts), opts, len(opts.DryRun) > 0)
	c.UID = obj.GetUID()
	if q.sub == nil { // of what is put below, only that part counts
		c.Declared = q.said
	}
	edited := func(_ context.Context, old *watchcache.CachedObject) (resource.Object, error) {
		o := obj.DeepCopyObject().(resource.Object)
		if o.GetResourceVersion() == "" && old != nil && !q.conditional() {
			o.SetResourceVersion(old.Hub.GetResourceVersion())
		}
		return q.updateFields(hubOf(old), o, q.subName(), opts.FieldManager)
	}
	return q.alterWith(ctx, c, edited)
}

func (q *req) conditional() bool {
	return q.kind.Strategy.Conditional || q.sub != nil && q.sub.Strategy != nil && q.sub.Strategy.Conditional
}

func (q *req) subName() string {
	if q.sub == nil {
		return ""
	}
	return q.sub.Name
}

func hubOf(f *watchcache.CachedObject) resource.Object {
	if f == nil {
		return nil
	}
	return f.Hub
}

// edit is how an update or patch makes the new object.
type edit func(ctx context.Context, old *watchcache.CachedObject) (resource.Object, error)

// alteration is an update with its mutating admission.
type alteration struct {
	registry.Update
	// admit is mutating admission of the new object; old is nil when creating.
	admit func(ctx context.Context, obj, old resource.Object) (resource.Object, error)
}

// alteration prepares a change of the path's object, with admission.
func (q *req) alteration(create, update runtime.Object, dryRun bool) *alteration {
	st := &q.kind.Strategy
	if q.sub != nil && q.sub.Strategy != nil {
		st = q.sub.Strategy
	}
	c := &alteration{Update: registry.Update{Kind: q.kind, Strategy: st, Namespace: q.ns, Name: q.name, DryRun: dryRun}}
	var asked *admit.Attributes
	c.Validate = func(ctx context.Context, obj, old resource.Object) error {
		asked = q.attributes(admit.Update, obj, old, update, dryRun)
		if err := q.Admission.Validate(ctx, q.lagging, asked); err != nil {
			return err
		}
		return q.recheck(ctx, obj, old, create, dryRun)
	}
	c.Ended = func(err error) {
		if asked != nil {
			asked.End(err)
		}
	}
	c.ValidateCreate = func(ctx context.Context, obj resource.Object) error {
		if q.Authorize != nil {
			at := &authorize.Attributes{User: q.user, Verb: "create", Group: q.kind.Group, Version: q.ver().Name, Resource: q.kind.Resource,
				Namespace: q.ns, Name: q.name, ResourceRequest: true, Path: q.r.URL.Path}
			d, reason, err := q.Authorize.Authorize(ctx, at)
			switch {
			case d == authorize.Allow: // whatever else went wrong
			case err != nil:
				return apierrors.NewInternalError(err)
			default:
				return authorize.Forbidden(at, reason)
			}
		}
		asked = q.attributes(admit.Create, obj, nil, create, dryRun)
		return q.Admission.Validate(ctx, q.lagging, asked)
	}
	c.admit = func(ctx context.Context, obj, old resource.Object) (resource.Object, error) {
		op, opts := admit.Update, update
		if old == nil {
			op, opts = admit.Create, create
		}
		at := q.attributes(op, obj, old, opts, dryRun)
		if err := q.mutate(ctx, at); err != nil {
			return nil, err
		}
		return q.refill(ctx, at.Object, old, create, dryRun)
	}
	return c
}

// alterWith makes the change and answers.
func (q *req) alterWith(ctx context.Context, c *alteration, e edit) error {
	c.Make = func(ctx context.Context, old *watchcache.CachedObject) (resource.Object, error) {
		obj, err := e(ctx, old)
		if err != nil {
			return nil, err
		}
		return c.admit(ctx, obj, hubOf(old))
	}
	f, created, err := q.writer.Update(ctx, &c.Update)
	if err != nil {
		return err
	}
	code := http.StatusOK
	if created {
		code = http.StatusCreated
		if f, err = q.initialized(ctx, f, c.DryRun); err != nil {
			return err
		}
	}
	return q.respond(code, f)
}
