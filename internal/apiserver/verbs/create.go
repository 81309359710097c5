// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/warning"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/audit"
	"github.com/mortise-dev/mortise/internal/apiserver/explain"
	"github.com/mortise-dev/mortise/internal/apiserver/registry"
	"github.com/mortise-dev/mortise/resource"
)

// requestTimeout bounds what a write may take.
const requestTimeoutSeconds = 34

// create stores a new object.
func create(q *req) error {
	if err := q.negotiate(); err != nil {
		return err
	}
	if _, err := q.inputMedia(); err != nil {
		return err
	}
	opts, err := q.createOptions()
	if err != nil {
		return err
	}
	obj, err := q.object(opts.FieldValidation)
	if err != nil {
		return err
	}
	ctx, cancel := q.writing()
	defer cancel()
	registry.WipeSystemFields(obj)
	if err := sameNamespace(q.ns, obj); err != nil {
		return err
	}
	q.dedupOwners(obj, false)
	if q.kind.Create != nil {
		return q.act(ctx, obj, opts)
	}
	dryRun := len(opts.DryRun) > 0
	at := q.attributes(admit.Create, obj, nil, opts, dryRun)
	if at.Name = obj.GetName(); q.kind.Resource == "namespaces" && q.kind.Group == "" {
		at.Namespace = at.Name
	}
	if obj, err = q.updateFields(nil, obj, "", opts.FieldManager); err != nil {
		return err
	}
	at.Object = obj
	if err := q.mutate(ctx, at); err != nil {
		return err
	}
	obj = at.Object
	said := at.Name
	validate := func(ctx context.Context, obj resource.Object) error {
		if at.Object, at.Name = obj, said; said == "" { // it was generated meanwhile
			at.Name = obj.GetName()
		}
		return q.Admission.Validate(ctx, q.lagging, at)
	}
	f, err := q.writer.Create(ctx, &registry.Creation{
		Kind: q.kind, Strategy: &q.kind.Strategy, Namespace: q.ns, DryRun: dryRun, Validate: validate, Ended: at.End,
	}, obj)
	if err != nil {
		return err
	}
	if f, err = q.initialized(ctx, f, dryRun); err != nil {
		return err
	}
	return q.respond(http.StatusCreated, f)
}

// act responds to a create of a kind whose objects are not stored.
func (q *req) act(ctx context.Context, obj resource.Object, opts *metav1.CreateOptions) error {
	obj, err := q.updateFields(nil, obj, "", opts.FieldManager)
	if err != nil {
		return err
	}
	at := q.attributes(admit.Create, obj, nil, opts, len(opts.DryRun) > 0)
	at.Name = obj.GetName()
	if err := q.mutate(ctx, at); err != nil {
		return err
	}
	if err := q.Admission.Validate(ctx, q.lagging, at); err != nil {
		return err
	}
	out, err := q.kind.Create(ctx, q.backend, at.Object, opts)
	if err != nil {
		return err
	}
	if out == nil {
		return q.respondOther(http.StatusCreated, &metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusCreated}, "v1", "Status")
	}
	return q.respond(http.StatusCreated, q.kind.NewCachedObject(out))
}

// writing is the context of a write: bounded, and with the request's warnings.
func (q *req) writing() (context.Context, context.CancelFunc) {
	ctx := admit.WithSpending(q.ctx, &q.spending)
	return context.WithTimeout(warning.WithWarningRecorder(ctx, q.warn), requestTimeoutSeconds*1e9)
}

func (q *req) attributes(op admit.Operation, obj, old resource.Object, opts runtime.Object, dryRun bool) *admit.Attributes {
	at := &admit.Attributes{
		Operation: op, Descriptor: q.kind.Descriptor, Version: q.ver().Name, Namespace: q.ns, Name: q.name,
		Object: obj, Old: old, Options: opts, User: q.user, DryRun: dryRun,
		Warn:     func(text string) { q.warn.AddWarning("", text) },
		Annotate: func(k, v string) { audit.Annotate(q.ctx, k, v) },
	}
	if dryRun {
		explain.From(q.ctx).DryRun()
	}
	if q.sub != nil {
		at.Subresource = q.sub.Name
	}
	if q.kind.Resource == "namespaces" && q.kind.Group == "" {
		at.Namespace = q.name
	}
	return at
}

// mutate is mutating admission, with what must hold again afterwards.
func (q *req) mutate(ctx context.Context, at *admit.Attributes) error {
	if len(q.Admission) == 0 {
		return nil
	}
	given := at.Object
	if err := q.Admission.Mutate(ctx, q.lagging, at); err != nil {
		return err
	}
	if at.Object == nil {
		return nil
	}
	if given != nil && at.Object != given { // made by a plug-in, which may not keep managed fields
		if err := managedfields.ValidateManagedFields(at.Object.GetManagedFields()); err != nil {
			at.Object.SetManagedFields(given.GetManagedFields())
			q.warn.AddWarning("", fmt.Sprintf(".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating admission controller; please fix your requests: %v", err))
		}
	}
	q.dedupOwners(at.Object, true)
	if at.Object != given && (q.sub == nil || q.sub.Strategy != nil) {
		return sameNamespace(q.ns, at.Object)
	}
	return nil
}

// updateFields records in managedFields what the writer changed.
func (q *req) updateFields(live, obj resource.Object, sub, managerName string) (resource.Object, error) {
	if q.Fields == nil {
		return obj, nil
	}
	by := manager(managerName, q.r.UserAgent())
	explain.From(q.ctx).Managed(by, string(metav1.ManagedFieldsOperationUpdate))
	return q.Fields.Update(q.kind.Descriptor, q.ver().Name, sub, live, obj, by)
}

// sameNamespace sets the namespace of the path in an object, or refuses an object of another namespace.
func sameNamespace(ns string, obj resource.Object) error {
	switch said := obj.GetNamespace(); {
	case said == ns:
	case said == "" || ns == "":
		obj.SetNamespace(ns)
	default:
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	return nil
}

// samePath refuses an object of another namespace or name than the path's.
func samePath(q *req, obj resource.Object) error {
	if err := sameNamespace(q.ns, obj); err != nil {
		return err
	}
	return sameName(q.name, obj)
}

// sameName refuses an object that is not the one of the path.
func sameName(name string, obj resource.Object) error {
	switch said := obj.GetName(); {
	case said == name:
		return nil
	case said == "":
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s based on URL) was undeterminable: name must be provided", name))
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", said, name))
	}
}

// dedupOwners removes owner references that are the same twice, with a warning.
func (q *req) dedupOwners(obj resource.Object, afterAdmission bool) {
	twice := registry.DedupOwnerReferences(obj)
	if len(twice) == 0 {
		return
	}
	text := ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: %v"
	if afterAdmission {
		text = ".metadata.ownerReferences contains duplicate entries after mutating admission happens; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: %v"
	}
	q.warn.AddWarning("", fmt.Sprintf(text, strings.Join(twice, ", ")))
}
