// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"

	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"

	"github.com/mortise-dev/mortise/internal/apiserver/explain"
	"github.com/mortise-dev/mortise/internal/apiserver/managedfields"
	"github.com/mortise-dev/mortise/internal/apiserver/merge"
	"github.com/mortise-dev/mortise/internal/apiserver/negotiate"
	"github.com/mortise-dev/mortise/internal/apiserver/overlay"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
)

// maxJSONPatch is how many operations a JSON patch may have.
const maxJSONPatch = 10000

// patching is one patch on its way.
type patching struct {
	*req
	kind       types.PatchType
	bytes      []byte
	opts       *metav1.PatchOptions
	validation string
	dec        *decoder
	toHub      func(resource.Object) (resource.Object, error)
	strategic  bool
	warned     bool
	plain      map[string]any // of a configuration that is written as plain JSON; nil: it is read as YAML
}

func (q *req) patchTypes() []string {
	ts := []string{string(types.JSONPatchType), string(types.MergePatchType)}
	if q.ver().Strategic {
		ts = append(ts, string(types.StrategicMergePatchType))
	}
	ts = append(ts, string(types.ApplyYAMLPatchType))
	if negotiate.SpeaksCBOR(q.ctx) {
		ts = append(ts, string(types.ApplyCBORPatchType))
	}
	return ts
}

// readPatch reads and checks the body and the options of a PATCH.
func (q *req) readPatch() (*patching, error) {
	ct, _, _ := strings.Cut(q.r.Header.Get("Content-Type"), ";")
	if ts := q.patchTypes(); !slices.Contains(ts, ct) {
		return nil, unsupportedMedia(ts)
	}
	if err := q.negotiate(); err != nil {
		return nil, err
	}
	body, err := q.body()
	if err != nil {
		return nil, err
	}
	o := &metav1.PatchOptions{}
	if v := q.query(); v != nil {
		if err := metav1.Convert_url_Values_To_v1_PatchOptions(&v, o, nil); err != nil {
			return nil, badRequest(err)
		}
	}
	if err := invalidOptions("PatchOptions", validation.ValidatePatchOptions(o, types.PatchType(ct))); err != nil {
		return nil, err
	}
	o.TypeMeta = metaKind("PatchOptions")
	if ct == string(types.ApplyCBORPatchType) { // YAML can express all of it
		if body, err = cborToJSON(body); err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
		}
		ct = string(types.ApplyYAMLPatchType)
	}
	p := &patching{req: q, kind: types.PatchType(ct), bytes: body, opts: o, validation: directive(o.FieldValidation), dec: q.decoder(),
		toHub: q.toHub, strategic: q.ver().Strategic}
	if p.kind == types.ApplyYAMLPatchType {
		if p.plain = plainObject(body); p.plain == nil {
			if _, err := utilyaml.ToJSON(body); err != nil {
				return nil, apierrors.NewBadRequest(fmt.Sprintf("error encoding patch: %v", err))
			}
		}
	} else if !json.Valid(body) {
		return nil, apierrors.NewBadRequest("invalid JSON patch")
	}
	p.auditPatch()
	explain.From(q.ctx).Body(ct, body)
	return p, nil
}

// patch changes a part of an object; a configuration that is applied may create it.
func patch(q *req) error {
	p, err := q.readPatch()
	if err != nil {
		return err
	}
	ctx, cancel := q.writing()
	defer cancel()
	update := patchToUpdate(p.opts)
	c := q.alteration(toCreate(update), update, len(p.opts.DryRun) > 0)
	c.Applied = p.kind == types.ApplyYAMLPatchType
	c.AllowCreate = c.Applied && q.sub == nil
	return q.alterWith(ctx, c, func(_ context.Context, old *watchcache.CachedObject) (resource.Object, error) {
		obj, err := p.apply(old)
		if err != nil {
			return nil, err
		}
		return obj, samePath(q, obj)
	})
}

// apply makes the patched object from the current one; nil is that there is none.
func (p *patching) apply(old *watchcache.CachedObject) (resource.Object, error) {
	if p.kind == types.ApplyYAMLPatchType {
		return p.configured(func(u *unstructured.Unstructured, force bool) (resource.Object, error) {
			if p.Fields == nil {
				return nil, unsupportedMedia(p.patchTypes()[:2])
			}
			explain.From(p.ctx).Managed(p.opts.FieldManager, string(metav1.ManagedFieldsOperationApply))
			c := managedfields.Configuration{Object: u, Manager: p.opts.FieldManager, Force: force}
			obj, err := p.Fields.Apply(p.req.kind.Descriptor, p.ver().Name, p.subName(), hubOf(old), c)
			if err == nil && p.dec.coerce != nil {
				err = p.dec.coerce(obj)
			}
			if prune := p.ver().PruneApplied; err == nil && prune != nil {
				prune(obj)
			}
			return obj, err
		})
	}
	if old == nil {
		return nil, apierrors.NewNotFound(p.gr(), p.name)
	}
	var obj resource.Object
	var err error
	if p.kind == types.StrategicMergePatchType {
		var cur resource.Object
		if cur, err = old.Kind.Versioned(p.version, old.Hub); err == nil {
			obj, err = p.strategicMerge(cur)
		}
	} else if obj, err = p.laidOver(old); obj == nil && err == nil {
		var cur []byte
		if cur, err = whole(old, p.version, mediaJSON); err == nil {
			obj, err = p.onJSON(bytes.TrimRight(cur, "\n"))
		}
	}
	if err != nil {
		return nil, err
	}
	if obj, err = p.toHub(obj); err != nil {
		return nil, err
	}
	return p.updateFields(old.Hub, obj, p.subName(), p.opts.FieldManager)
}

// laidOver applies a merge patch to a copy of the object; nil: its texts must be merged.
func (p *patching) laidOver(old *watchcache.CachedObject) (resource.Object, error) {
	if p.kind != types.MergePatchType || old.Kind.Unstructured {
		return nil, nil
	}
	var members map[string]any
	if strict, err := kjson.UnmarshalStrict(p.bytes, &members); err != nil || len(strict) > 0 || members == nil {
		return nil, nil //nolint:nilerr // the merge of the texts says so
	}
	cur, err := old.Kind.Versioned(p.version, old.Hub)
	if err != nil {
		return nil, err
	}
	obj := cur.DeepCopyObject().(resource.Object)
	if !overlay.Patch(obj, members) {
		return nil, nil
	}
	obj, _, more, err := p.dec.finish(obj, p.dec.gvk, nil, p.strictly())
	if err != nil || len(more) > 0 {
		return nil, nil //nolint:nilerr // likewise
	}
	return obj, nil
}

// onJSON applies a JSON patch or merge patch to the object's JSON, and decodes the result.
func (p *patching) onJSON(cur []byte) (resource.Object, error) {
	patched, strict, err := p.patchJSON(cur)
	if err != nil {
		return nil, err
	}
	obj := p.dec.empty()
	var more []error
	if u, ok := obj.(*unstructured.Unstructured); ok {
		m := map[string]any{}
		more, err = unmarshal(patched, &m, p.strictly())
		u.Object = m
	} else {
		more, err = unmarshal(patched, obj, p.strictly())
	}
	bad := func(msg string) error {
		return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{field.Invalid(field.NewPath("patch"), string(patched), msg)})
	}
	if err != nil {
		return nil, bad(err.Error())
	}
	if err := p.sayKind(obj, patched); err != nil {
		if api := apierrors.APIStatus(nil); errors.As(err, &api) {
			return nil, err
		}
		return nil, bad(err.Error())
	}
	if !free(obj) && obj.GetObjectKind().GroupVersionKind().Version == "" && obj.GetObjectKind().GroupVersionKind().Kind != "" {
		// it is then of no version, and none of its fields is known
		if obj = p.dec.empty(); p.strictly() {
			if more, err = kjson.UnmarshalStrict(patched, &struct {
				metav1.TypeMeta `json:",inline"`
			}{}); err != nil {
				return nil, bad(err.Error())
			}
		}
	}
	obj, _, more, err = p.dec.finish(obj, p.dec.gvk, more, p.strictly())
	if err != nil {
		return nil, bad(strings.TrimPrefix(err.Error(), fmt.Sprintf("%s in version %q cannot be handled as a %s: ", p.dec.gvk.Kind,
			p.dec.gvk.Version, p.dec.gvk.Kind)))
	}
	if strict = append(strict, more...); len(strict) > 0 {
		if p.validation == metav1.FieldValidationStrict {
			return nil, bad(runtime.NewStrictDecodingError(strict).Error())
		}
		p.warnOnce(strict)
	}
	return obj, nil
}

func (p *patching) strictly() bool { return p.validation != metav1.FieldValidationIgnore }

func (p *patching) warnOnce(strict []error) {
	if !p.warned && p.validation == metav1.FieldValidationWarn {
		p.warnStrict(strict)
		p.warned = true
	}
}

// jsonPatchOp is read only to find what is wrong in a patch.
type jsonPatchOp struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	From  string `json:"from"`
	Value any    `json:"value"`
}

// decodingPatch is the 400 of a patch that is no patch; the type's name is what clients of kube-apiserver see.
func decodingPatch(err error) error {
	return apierrors.NewBadRequest("error decoding patch: " + strings.ReplaceAll(err.Error(), "verbs.jsonPatchOp", "handlers.jsonPatchOp"))
}

func (p *patching) patchJSON(cur []byte) (patched []byte, strict []error, err error) {
	if p.kind == types.JSONPatchType {
		if p.strictly() {
			var ops []jsonPatchOp
			if strict, err = kjson.UnmarshalStrict(p.bytes, &ops); err != nil {
				return nil, nil, decodingPatch(err)
			}
			for i := range strict {
				strict[i] = fmt.Errorf("json patch %w", strict[i])
			}
		}
		ops, err := jsonpatch.DecodePatch(p.bytes)
		if err != nil {
			return nil, nil, badRequest(err)
		}
		if len(ops) > maxJSONPatch {
			return nil, nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("The allowed maximum operations in a JSON patch is %d, got %d",
				maxJSONPatch, len(ops)))
		}
		if err := merge.CheckOperations(cur, p.bytes, len(ops)); err != nil {
			return nil, nil, apierrors.NewRequestEntityTooLargeError(err.Error())
		}
		if patched, err = ops.Apply(cur); err != nil {
			return nil, nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0,
				false)
		}
		return patched, strict, nil
	}
	if p.strictly() {
		m := map[string]any{}
		if strict, err = kjson.UnmarshalStrict(p.bytes, &m); err != nil {
			return nil, nil, decodingPatch(err)
		}
	}
	patched, err = merge.JSON(cur, p.bytes)
	if errors.Is(err, jsonpatch.ErrBadJSONPatch) {
		err = badRequest(err)
	}
	return patched, strict, err
}

// strategicMerge applies a strategic merge patch to an object of the request's version.
func (p *patching) strategicMerge(cur resource.Object) (resource.Object, error) {
	original, err := runtime.DefaultUnstructuredConverter.ToUnstructured(cur)
	if err != nil {
		return nil, fmt.Errorf("read object for patch: %w", err)
	}
	patch := map[string]any{}
	strict, err := unmarshal(p.bytes, &patch, p.strictly())
	if err != nil {
		return nil, badRequest(err)
	}
	obj := p.dec.empty()
	merged, err := merge.Strategic(original, patch, obj)
	if err != nil {
		switch {
		case errors.Is(err, mergepatch.ErrBadJSONDoc), errors.Is(err, mergepatch.ErrBadPatchFormatForPrimitiveList),
			errors.Is(err, mergepatch.ErrBadPatchFormatForRetainKeys), errors.Is(err, mergepatch.ErrBadPatchFormatForSetElementOrderList),
			errors.Is(err, mergepatch.ErrUnsupportedStrategicMergePatchFormat):
			return nil, badRequest(err)
		case errors.Is(err, mergepatch.ErrNoListOfLists):
			return nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
		}
		return nil, err
	}
	bad := func(msg string) error {
		return apierrors.NewInvalid(schema.GroupKind{}, "",
			field.ErrorList{field.Invalid(field.NewPath("patch"), fmt.Sprintf("%+v", patch), msg)})
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(merged, obj, p.strictly()); err != nil {
		more, ok := runtime.AsStrictDecodingError(err)
		if !ok {
			return nil, bad(err.Error())
		}
		strict = append(strict, more.Errors()...)
	}
	if len(strict) > 0 {
		if p.validation == metav1.FieldValidationStrict {
			return nil, bad(runtime.NewStrictDecodingError(strict).Error())
		}
		p.warnOnce(strict)
	}
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	if p.dec.fill != nil {
		p.dec.fill(obj)
	}
	return obj, nil
}

// configured is server-side apply: it reads the configuration and has it applied.
func (p *patching) configured(apply func(u *unstructured.Unstructured, force bool) (resource.Object, error)) (resource.Object, error) {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	if p.plain != nil {
		u.Object = p.plain
	} else if err := utilyaml.Unmarshal(p.bytes, &u.Object); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	obj, err := apply(u, p.opts.Force != nil && *p.opts.Force)
	if err != nil {
		return nil, err
	}
	if p.strictly() && p.plain == nil {
		if err := utilyaml.UnmarshalStrict(p.bytes, &map[string]any{}); err != nil {
			if p.validation == metav1.FieldValidationStrict {
				return nil, apierrors.NewBadRequest(fmt.Sprintf("error strict decoding patch: %v", err))
			}
			p.warnOnce([]error{err})
		}
	}
	return obj, nil
}

// free reports whether an object has no Go type.
func free(obj resource.Object) bool {
	_, ok := obj.(*unstructured.Unstructured)
	return ok
}

// sayKind checks the kind and version of the patched object. They were right before, so that only the patch can have changed
// them.
func (p *patching) sayKind(obj resource.Object, patched []byte) error {
	want := p.dec.gvk
	if obj.GetObjectKind().GroupVersionKind() == want {
		return nil
	}
	found, err := jsonserializer.DefaultMetaFactory.Interpret(patched)
	if err != nil {
		return err
	}
	if found.Kind == want.Kind && found.GroupVersion() == want.GroupVersion() {
		return nil
	}
	free := free(obj)
	switch {
	case free && found.Kind == "":
		return runtime.NewMissingKindErr(string(patched))
	case free && found.GroupVersion().Empty():
		return apierrors.NewInternalError(runtime.NewMissingVersionErr("object has no apiVersion field"))
	case free:
		var errs field.ErrorList
		if found.Kind != want.Kind {
			errs = append(errs, field.Invalid(field.NewPath("kind"), found.Kind, "must be "+want.Kind))
		}
		if found.GroupVersion() != want.GroupVersion() {
			errs = append(errs, field.Invalid(field.NewPath("apiVersion"), found.GroupVersion().String(), "must be "+want.GroupVersion().String()))
		}
		return apierrors.NewInvalid(found.GroupKind(), p.name, errs)
	case found.GroupVersion().Empty():
		return nil
	}
	said := withDefaults(*found, want)
	switch {
	case said == want || slices.Contains(p.dec.others, said.GroupVersion()) && said.Kind == want.Kind:
		return nil
	case !p.dec.known(said):
		return fmt.Errorf("no kind %q is registered for version %q in scheme %q", said.Kind, said.GroupVersion(), schemeName)
	case said.Kind != want.Kind || said.Group != want.Group:
		return fmt.Errorf("converting (%s) to (%s): unknown conversion", said.Kind, want.Kind)
	}
	return nil
}
