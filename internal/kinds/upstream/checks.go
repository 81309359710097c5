// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"

	"k8s.io/apimachinery/pkg/api/validate"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/resource"
)

// CreateCheck and UpdateCheck are validation functions for a [resource.Strategy].
type (
	CreateCheck = func(ctx context.Context, obj resource.Object) field.ErrorList
	UpdateCheck = func(ctx context.Context, obj, old resource.Object) field.ErrorList
)

// Checks are one kind's validation functions. Status is for the status subresource, nil when there is none.
type Checks struct {
	Create CreateCheck
	Update UpdateCheck
	Status UpdateCheck
}

// declared configures how a kind's generated (declarative) validation runs after its handwritten one.
type declared struct {
	options func(obj, old resource.Object) map[string]bool
	rules   []field.NormalizationRule
}

//go:generate go run ./gen

// run adds the errors of the declarative validation to errs, and removes those that it covers. old is nil on create. The generated code is
// upstream's, and so is the order: handwritten errors first.
func (d declared) run(ctx context.Context, obj, old resource.Object, errs field.ErrorList, subresource ...string) field.ErrorList {
	given := obj
	obj = spoken(ctx, obj)
	if len(errs) == 0 && len(subresource) == 0 && advisory(obj) {
		return nil
	}
	var options map[string]bool
	if d.options != nil {
		options = d.options(given, old)
	}
	var found field.ErrorList
	if old = spoken(ctx, old); old == nil {
		found = scheme().Validate(ctx, options, obj, subresource...)
	} else {
		found = scheme().ValidateUpdate(ctx, options, obj, old, subresource...)
	}
	if len(found) == 0 && len(errs) == 0 {
		return nil
	}
	errs = errs.MarkFromImperative()
	enforced := validate.FilterEnforcedDeclarativeErrors(ctx, found, true)
	errs = validate.FilterCoveredHandwrittenErrors(ctx, errs, enforced, true, d.rules...)
	return append(errs, enforced...)
}

// spoken returns obj in the request's version: declared rules belong to a version and name its fields.
func spoken(ctx context.Context, obj resource.Object) resource.Object {
	info, ok := request.RequestInfoFrom(ctx)
	if !ok || obj == nil {
		return obj
	}
	kinds, _, err := scheme().ObjectKinds(obj)
	if err != nil || len(kinds) == 0 || kinds[0].Group != info.APIGroup || kinds[0].Version == info.APIVersion {
		return obj
	}
	other, err := scheme().New(schema.GroupVersionKind{Group: info.APIGroup, Version: info.APIVersion, Kind: kinds[0].Kind})
	if err != nil {
		return obj // a subresource whose kind is in another group
	}
	if err := Convert(obj, other, kinds[0].GroupKind()); err != nil {
		return obj
	}
	return other.(resource.Object)
}

// created converts a validation function on the unversioned form, to which P points, to a check for creates. Here and below the type
// parameter is the pointer: for all pointers the compiler makes one function.
func created[P any](f func(obj P) field.ErrorList, d ...declared) CreateCheck {
	rules := first(d)
	return func(ctx context.Context, obj resource.Object) field.ErrorList {
		return rules.run(ctx, obj, nil, f(internal[P](obj)))
	}
}

// updated converts a validation function to a check for updates; with a subresource's name, for updates through that.
func updated[P any](f func(obj, old P) field.ErrorList, subresource ...string) UpdateCheck {
	return updatedBy(f, declared{}, subresource...)
}

// updatedBy is updated with its own configuration of the declarative validation.
func updatedBy[P any](f func(obj, old P) field.ErrorList, d declared, subresource ...string) UpdateCheck {
	return func(ctx context.Context, obj, old resource.Object) field.ErrorList {
		return d.run(ctx, obj, old, f(internal[P](obj), internal[P](old)), subresource...)
	}
}

// both runs the check for creates on the new object before the one for updates, as many older kinds do.
func both[P any](create func(obj P) field.ErrorList, update func(obj, old P) field.ErrorList) func(obj, old P) field.ErrorList {
	return func(obj, old P) field.ErrorList { return append(create(obj), update(obj, old)...) }
}

// onlyNew converts a function that ignores the old object to an update check.
func onlyNew[P any](f func(obj P) field.ErrorList) func(obj, old P) field.ErrorList {
	return func(obj, _ P) field.ErrorList { return f(obj) }
}

// noneUpdated accepts every update.
func noneUpdated[P any](_, _ P) field.ErrorList { return nil }

func first(d []declared) declared {
	if len(d) == 0 {
		return declared{}
	}
	return d[0]
}

// options is a fixed set of options for declarative validation.
func options(o map[string]bool) declared {
	return declared{options: func(_, _ resource.Object) map[string]bool { return o }}
}
