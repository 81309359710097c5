// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"

	"github.com/mortise-dev/mortise/resource"
)

func (k *kind) prepareCreate(_ context.Context, obj resource.Object) {
	u := obj.(*unstructured.Unstructured)
	if k.of(obj).hasStatus() {
		delete(u.Object, "status")
	}
	u.SetGeneration(1)
}

func (k *kind) prepareUpdate(_ context.Context, obj, old resource.Object) {
	u, o := obj.(*unstructured.Unstructured), old.(*unstructured.Unstructured)
	if k.of(obj).hasStatus() {
		if status, ok := o.Object["status"]; ok {
			u.Object["status"] = runtime.DeepCopyJSONValue(status)
		} else {
			delete(u.Object, "status")
		}
	}
	if !sameContent(u.Object, o.Object) {
		u.SetGeneration(o.GetGeneration() + 1)
	}
}

// sameContent compares all but the metadata.
func sameContent(a, b map[string]any) bool {
	count := func(m map[string]any) int {
		if _, ok := m["metadata"]; ok {
			return len(m) - 1
		}
		return len(m)
	}
	if count(a) != count(b) {
		return false
	}
	for key, x := range a {
		if key == "metadata" {
			continue
		}
		y, ok := b[key]
		if !ok || !apiequality.Semantic.DeepEqual(x, y) {
			return false
		}
	}
	return true
}

// prepareStatus keeps all but the status and the managed fields.
func (k *kind) prepareStatus(_ context.Context, obj, old resource.Object) {
	u := obj.(*unstructured.Unstructured)
	status, ok := u.Object["status"]
	managed := u.GetManagedFields()
	u.Object = old.(*unstructured.Unstructured).DeepCopy().Object
	u.SetManagedFields(managed)
	if ok {
		u.Object["status"] = status
	} else {
		delete(u.Object, "status")
	}
}

func (k *kind) validate(ctx context.Context, obj resource.Object) field.ErrorList {
	v := k.of(obj)
	with, err := v.validators()
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	u := obj.(*unstructured.Unstructured)
	errs := v.validateType(u)
	if len(errs) == 0 {
		errs = append(errs, k.validateMeta(ctx, u, nil)...)
		errs = append(errs, schemavalidation.ValidateCustomResource(nil, u.Object, with.schema)...)
		errs = append(errs, v.validateScaleSpec(u)...)
		errs = append(errs, v.validateScaleStatus(u)...)
	}
	errs = append(errs, objectmeta.Validate(ctx, nil, u.Object, v.structural(), false)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, v.structural(), u.Object)...)
	return v.validateRules(ctx, with, errs, u, nil, nil)
}

func (k *kind) validateUpdate(ctx context.Context, obj, old resource.Object) field.ErrorList {
	return k.validateChange(ctx, obj, old, change.validate)
}

func (k *kind) validateStatus(ctx context.Context, obj, old resource.Object) field.ErrorList {
	return k.validateChange(ctx, obj, old, change.validateStatus)
}

// change is an update of an object, or of its status alone.
type change struct {
	version *version
	with    *validators
	obj, of *unstructured.Unstructured
	pair    *common.CorrelatedObject
}

// validate checks the whole object against the schema. Metadata of embedded objects is checked even if the object's own type is wrong.
func (c change) validate(ctx context.Context, typed bool) field.ErrorList {
	var errs field.ErrorList
	if typed {
		errs = append(errs, schemavalidation.ValidateCustomResourceUpdate(nil, c.obj.Object, c.of.Object, c.with.schema,
			schemavalidation.WithRatcheting(c.pair))...)
		errs = append(errs, c.version.validateScaleSpec(c.obj)...)
		errs = append(errs, c.version.validateScaleStatus(c.obj)...)
	}
	return append(errs, objectmeta.Validate(ctx, nil, c.obj.Object, c.version.structural(), false)...)
}

// validateStatus checks the status alone.
func (c change) validateStatus(_ context.Context, typed bool) (errs field.ErrorList) {
	if !typed {
		return nil
	}
	if status, ok := c.obj.Object["status"]; ok {
		var opts []schemavalidation.ValidationOption
		if c.version.structural() != nil {
			opts = append(opts, schemavalidation.WithRatcheting(c.pair.Key("status")))
		}
		errs = schemavalidation.ValidateCustomResourceUpdate(field.NewPath("status"), status, c.of.Object["status"], c.with.status, opts...)
	}
	return append(errs, c.version.validateScaleStatus(c.obj)...)
}

// validateChange is what updates of objects and of their status have in common. It passes to part whether the object's type is right.
func (k *kind) validateChange(
	ctx context.Context, obj, old resource.Object, part func(c change, ctx context.Context, typed bool) field.ErrorList,
) field.ErrorList {
	v := k.of(obj)
	with, err := v.validators()
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	u, o := obj.(*unstructured.Unstructured), old.(*unstructured.Unstructured)
	pair := common.NewCorrelatedObject(u.Object, o.Object, &model.Structural{Structural: v.structural()})
	errs := v.validateType(u)
	typed := len(errs) == 0
	if typed {
		errs = append(errs, k.validateMeta(ctx, u, o)...)
	}
	errs = append(errs, part(change{v, with, u, o, pair}, ctx, typed)...)
	errs = append(errs, v.validateLists(u, o)...)
	return v.validateRules(ctx, with, errs, u, o, pair)
}

// validateLists checks sets and maps, unless they were wrong before.
func (v *version) validateLists(u, old *unstructured.Unstructured) field.ErrorList {
	errs := listtype.ValidateListSetsAndMaps(nil, v.structural(), u.Object)
	if len(errs) > 0 && len(listtype.ValidateListSetsAndMaps(nil, v.structural(), old.Object)) > 0 {
		return nil
	}
	return errs
}

// validateRules runs the CEL rules if there is no error that could mislead them.
func (v *version) validateRules(ctx context.Context, with *validators, errs field.ErrorList, u, old *unstructured.Unstructured,
	pair *common.CorrelatedObject) field.ErrorList {
	if with.cel == nil {
		return errs
	}
	for _, err := range errs {
		switch err.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
			return append(errs, field.Invalid(nil, nil,
				"some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"))
		}
	}
	var oldContent any
	var opts []cel.Option
	if old != nil {
		oldContent = old.Object
		opts = append(opts, cel.WithRatcheting(pair))
	}
	more, _ := with.cel.Validate(ctx, nil, v.structural(), u.Object, oldContent, celconfig.RuntimeCELCostBudget, opts...)
	return append(errs, more...)
}

func (v *version) validateType(u *unstructured.Unstructured) field.ErrorList {
	var errs field.ErrorList
	if u.GetKind() != v.k.name {
		errs = append(errs, field.Invalid(field.NewPath("kind"), u.GetKind(), "must be "+v.k.name))
	}
	if want := v.k.group + "/" + v.name; u.GetAPIVersion() != want {
		errs = append(errs, field.Invalid(field.NewPath("apiVersion"), u.GetAPIVersion(), "must be "+want))
	}
	return errs
}

func (k *kind) validateMeta(ctx context.Context, u, old *unstructured.Unstructured) field.ErrorList {
	meta, errs := objectMeta(u)
	if len(errs) > 0 {
		return errs
	}
	path := field.NewPath("metadata")
	if old == nil {
		return validation.ValidateObjectMetaDeclaratively(ctx, operation.Create, meta, nil, k.namespaced, validation.NameIsDNSSubdomain, path,
			true)
	}
	before, errs := objectMeta(old)
	if len(errs) > 0 {
		return errs
	}
	return validation.ValidateObjectMetaDeclaratively(ctx, operation.Update, meta, before, k.namespaced, nil, path, true)
}

func objectMeta(u *unstructured.Unstructured) (*metav1.ObjectMeta, field.ErrorList) {
	raw, ok := u.Object["metadata"]
	if !ok || raw == nil {
		return &metav1.ObjectMeta{}, nil
	}
	m, ok := raw.(map[string]any)
	if !ok {
		return nil, field.ErrorList{field.Invalid(field.NewPath("metadata"), raw, fmt.Sprintf("expected map[string]interface{}, got %T", raw))}
	}
	meta := &metav1.ObjectMeta{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(m, meta); err != nil {
		return nil, field.ErrorList{field.Invalid(field.NewPath("metadata"), raw, err.Error())}
	}
	return meta, nil
}

func (v *version) validateScaleSpec(u *unstructured.Unstructured) field.ErrorList {
	if s := v.scale(); s != nil {
		return validateReplicas(u, s.SpecReplicasPath)
	}
	return nil
}

func (v *version) validateScaleStatus(u *unstructured.Unstructured) field.ErrorList {
	s := v.scale()
	if s == nil {
		return nil
	}
	errs := validateReplicas(u, s.StatusReplicasPath)
	if s.LabelSelectorPath != nil {
		selector, _, err := unstructured.NestedString(u.Object, splitPath(*s.LabelSelectorPath)...)
		if err != nil {
			errs = append(errs, field.Invalid(field.NewPath(*s.LabelSelectorPath), selector, err.Error()))
		}
	}
	return errs
}

func validateReplicas(u *unstructured.Unstructured, path string) field.ErrorList {
	n, _, err := unstructured.NestedInt64(u.Object, splitPath(path)...)
	var text string
	switch {
	case err != nil:
		text = err.Error()
	case n < 0:
		text = "should be a non-negative integer"
	case n > math.MaxInt32:
		text = fmt.Sprintf("should be less than or equal to %v", math.MaxInt32)
	default:
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath(path), n, text)}
}

// warnFinalizers warns of finalizers, added by this write, whose names could clash with those of others.
func warnFinalizers(_ context.Context, obj, old resource.Object) []string {
	added := slices.Clone(obj.GetFinalizers())
	if old != nil {
		before := old.GetFinalizers()
		added = slices.DeleteFunc(added, func(f string) bool { return slices.Contains(before, f) })
	}
	slices.Sort(added)
	var warnings []string
	for _, f := range slices.Compact(added) {
		for _, msg := range utilvalidation.IsQualifiedName(f) {
			warnings = append(warnings, fmt.Sprintf("metadata.finalizers: %q: %s", f, msg))
		}
		switch {
		case strings.Contains(f, "/"), f == metav1.FinalizerOrphanDependents, f == metav1.FinalizerDeleteDependents, f == "kubernetes":
		case strings.Contains(f, "."):
			warnings = append(warnings, fmt.Sprintf(
				"metadata.finalizers: %q: prefer a domain-qualified finalizer name including a path (/) to avoid accidental conflicts with other finalizer writers", f))
		default:
			warnings = append(warnings, fmt.Sprintf(
				"metadata.finalizers: %q: prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers", f))
		}
	}
	return warnings
}
