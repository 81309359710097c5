// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/internal/apiserver/registry"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
)

// subresourceVerb is the function for a request below an object, nil when there is none.
func (q *req) subresourceVerb() func(*req) error {
	s := q.sub
	verb := map[string]string{
		http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
	}[q.r.Method]
	switch {
	case s.Connect != nil:
		if verb == "" && (q.r.Method == http.MethodHead || q.r.Method == http.MethodOptions) {
			verb = "update" // what takes all methods, takes these
		}
		if slices.Contains(s.Verbs, verb) {
			return connect
		}
		return nil
	case verb == "" || !slices.Contains(s.Verbs, verb):
		return nil
	case s.Create != nil && verb == "create":
		return createBelow
	case s.Strategy != nil:
		return map[string]func(*req) error{"get": get, "update": update, "patch": patch}[verb]
	case s.View != nil:
		return map[string]func(*req) error{"get": getView, "update": updateView, "patch": patchView}[verb]
	}
	return nil
}

// below is the kind that the subresource's path speaks.
func (q *req) below() schema.GroupVersionKind {
	if gvk := q.sub.GroupVersionKind; gvk.Kind != "" {
		return gvk
	}
	return q.kind.GroupVersionKind(q.ver().Name)
}

func (q *req) belowDecoder(empty func() resource.Object, fill func(resource.Object)) *decoder {
	gvk := q.below()
	d := &decoder{gvk: gvk, empty: empty, fill: fill, mute: q.kind.Unstructured}
	if gvk.Kind == "Eviction" {
		d.others = []schema.GroupVersion{{Group: gvk.Group, Version: "v1beta1"}}
	}
	return d
}

// objectBelow reads the object that a request sends to the subresource.
func (q *req) objectBelow(empty func() resource.Object, fill func(resource.Object), fieldValidation string) (resource.Object, error) {
	media, err := q.inputMedia()
	if err != nil {
		return nil, err
	}
	body, err := q.body()
	if err != nil {
		return nil, err
	}
	obj, strict, err := q.belowDecoder(empty, fill).decode(body, media, directive(fieldValidation))
	if err != nil {
		return nil, err
	}
	q.warnStrict(strict)
	q.auditObject(obj, q.below())
	return obj, nil
}

// createBelow acts on the parent: binding, eviction, token.
func createBelow(q *req) error {
	if err := q.negotiate(); err != nil {
		return err
	}
	opts, err := q.createOptions()
	if err != nil {
		return err
	}
	obj, err := q.objectBelow(q.sub.Create.New, q.sub.Create.Default, opts.FieldValidation)
	if err != nil {
		return err
	}
	ctx, cancel := q.writing()
	defer cancel()
	if err := sameNamespace(q.ns, obj); err != nil {
		return err
	}
	if q.Fields != nil && q.below().Kind == "TokenRequest" { // bindings and evictions are answered with a status
		obj = q.Fields.Answered(q.below(), q.sub.Name, obj, q.sub.Create.New, manager(opts.FieldManager, q.r.UserAgent()))
	}
	at := q.attributes(admit.Create, obj, nil, opts, len(opts.DryRun) > 0)
	if err := q.mutate(ctx, at); err != nil {
		return err
	}
	if err := q.Admission.Validate(ctx, q.lagging, at); err != nil {
		return err
	}
	out, err := q.sub.Create.Do(ctx, q.backend, q.ns, q.name, at.Object, opts)
	if err != nil {
		return err
	}
	if st, ok := out.(*metav1.Status); ok {
		if st.Code == 0 {
			st.Code = http.StatusCreated
		}
		return q.respondOther(http.StatusCreated, st, "v1", "Status")
	}
	gvk := q.below()
	return q.respondOther(http.StatusCreated, out, gvk.GroupVersion().String(), gvk.Kind)
}

func (q *req) respondView(of func(parent resource.Object) (resource.Object, error), parent resource.Object) error {
	v, err := of(parent)
	if err != nil {
		return err
	}
	gvk := q.below()
	return q.respondOther(http.StatusOK, v, gvk.GroupVersion().String(), gvk.Kind)
}

func getView(q *req) error {
	if err := q.negotiate(); err != nil {
		return err
	}
	f, err := q.read()
	if err != nil {
		return err
	}
	return q.respondView(q.sub.View.Get, f.Hub)
}

func updateView(q *req) error {
	if err := q.negotiate(); err != nil {
		return err
	}
	opts, err := q.updateOptions()
	if err != nil {
		return err
	}
	obj, err := q.objectBelow(q.sub.View.New, nil, opts.FieldValidation)
	if err != nil {
		return err
	}
	if err := samePath(q, obj); err != nil {
		return err
	}
	c := q.alteration(toCreate(opts), opts, len(opts.DryRun) > 0)
	c.UID = obj.GetUID()
	return q.alterView(c, func(was resource.Object) (resource.Object, error) {
		return q.updateView(was, obj.DeepCopyObject().(resource.Object), opts.FieldManager)
	})
}

// scales reports whether the view is a Scale, the one kind of view whose fields have managers.
func (q *req) scales() bool { return q.Fields != nil && q.below() == scaleKind }

var scaleKind = schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}

func (q *req) updateView(was, obj resource.Object, managerName string) (resource.Object, error) {
	if !q.scales() {
		return obj, nil
	}
	return q.Fields.UpdateScale(was, obj, manager(managerName, q.r.UserAgent()))
}

func patchView(q *req) error {
	p, err := q.readPatch()
	if err != nil {
		return err
	}
	p.dec = q.belowDecoder(q.sub.View.New, nil)
	update := patchToUpdate(p.opts)
	c := q.alteration(toCreate(update), update, len(p.opts.DryRun) > 0)
	c.Applied = p.kind == types.ApplyYAMLPatchType
	return q.alterView(c, func(was resource.Object) (resource.Object, error) {
		obj, err := p.applyToView(was)
		if err != nil {
			return nil, err
		}
		return obj, samePath(q, obj)
	})
}

func (p *patching) applyToView(was resource.Object) (resource.Object, error) {
	var obj resource.Object
	var err error
	switch p.kind {
	case types.ApplyYAMLPatchType:
		return p.configured(func(u *unstructured.Unstructured, force bool) (resource.Object, error) {
			if !p.scales() {
				return nil, unsupportedMedia(p.patchTypes()[:2])
			}
			return p.Fields.ApplyScale(was, u.DeepCopy(), p.opts.FieldManager, force)
		})
	case types.StrategicMergePatchType:
		obj, err = p.strategicMerge(was.DeepCopyObject().(resource.Object))
	default:
		cur := was.DeepCopyObject().(resource.Object)
		cur.GetObjectKind().SetGroupVersionKind(p.below())
		var b []byte
		if b, err = json.Marshal(cur); err != nil {
			return nil, fmt.Errorf("encode %s: %w", p.below().Kind, err)
		}
		obj, err = p.onJSON(b)
	}
	if err != nil {
		return nil, err
	}
	return p.updateView(was, obj, p.opts.FieldManager)
}

// alterView changes the parent through its view.
func (q *req) alterView(c *alteration, edit func(was resource.Object) (resource.Object, error)) error {
	ctx, cancel := q.writing()
	defer cancel()
	view := q.sub.View
	begin, end := view.Get, view.Get
	if view.Edit != nil {
		begin = view.Edit
	}
	if view.Written != nil {
		end = view.Written
	}
	c.Strategy = &q.kind.Strategy
	validate := c.Validate
	c.Validate = nil
	c.Make = func(ctx context.Context, old *watchcache.CachedObject) (resource.Object, error) {
		was, err := begin(old.Hub)
		if err != nil {
			return nil, err
		}
		if q.scales() {
			entries, err := q.Fields.ScaleEntries(q.kind.Descriptor, q.ver().Name, old.Hub)
			if err != nil {
				return nil, err
			}
			was.SetManagedFields(entries)
		}
		v, err := edit(was)
		if err != nil {
			return nil, err
		}
		if v, err = c.admit(ctx, v, was); err != nil {
			return nil, err
		}
		if view.Strategy.ValidateUpdate != nil || view.Strategy.Validate != nil {
			var errs field.ErrorList
			if view.Strategy.ValidateUpdate != nil {
				errs = view.Strategy.ValidateUpdate(ctx, v, was)
			} else {
				errs = view.Strategy.Validate(ctx, v)
			}
			if len(errs) > 0 {
				return nil, apierrors.NewInvalid(q.below().GroupKind(), q.name, errs)
			}
		}
		if err := validate(ctx, v, was); err != nil {
			return nil, err
		}
		parent := registry.Copy(old)
		if err := view.Set(v, parent); err != nil {
			return nil, err
		}
		if rv := v.GetResourceVersion(); rv != "" {
			parent.SetResourceVersion(rv)
		}
		if !q.scales() {
			return parent, nil
		}
		entries, err := q.Fields.ParentEntries(q.kind.Descriptor, q.ver().Name, old.Hub, v.GetManagedFields())
		if err != nil {
			return nil, err
		}
		parent.SetManagedFields(entries)
		return parent, nil
	}
	f, _, err := q.writer.Update(ctx, &c.Update)
	if err != nil {
		return err
	}
	return q.respondView(end, f.Hub)
}

// connect hands the request to a handler that streams.
func connect(q *req) error {
	s := q.sub.Connect
	if q.sub.Name == "log" { // the others stream whatever the client accepts
		if err := q.negotiate(); err != nil {
			return err
		}
	}
	query := q.r.URL.Query()
	opts, err := s.Options(query)
	if err != nil {
		return err
	}
	ctx := q.ctx
	if q.sub.Name != "log" { // reading a log is a get, which admission does not review
		ctx := warning.WithWarningRecorder(admit.WithSpending(ctx, &q.spending), q.warn)
		at := q.attributes(admit.Connect, nil, nil, opts, false)
		if err := q.Admission.Mutate(ctx, q.lagging, at); err != nil {
			return err
		}
		if err := q.Admission.Validate(ctx, q.lagging, at); err != nil {
			return err
		}
	}
	if s.AsCreate && q.r.Method != http.MethodPost {
		if err := q.mayCreate(ctx); err != nil {
			return err
		}
	}
	path := ""
	if len(q.info.Parts) > 3 {
		path = "/" + strings.Join(q.info.Parts[3:], "/")
	}
	if strings.HasSuffix(q.info.Path, "/") && !strings.HasSuffix(path, "/") {
		path += "/"
	}
	h, err := s.Handler(ctx, q.backend, q.ns, q.name, opts, path)
	if err != nil {
		return err
	}
	h.ServeHTTP(q.w, q.r)
	return nil
}

// mayCreate asks whether the user may do what the request is about with the verb create. Who may not reads which right is missing,
// in the words of every other refusal: RBAC itself gives no reason.
func (q *req) mayCreate(ctx context.Context) error {
	if q.Authorize == nil {
		return nil
	}
	at := &authorize.Attributes{User: q.user, Verb: "create", Group: q.kind.Group, Version: q.ver().Name, Resource: q.kind.Resource,
		Subresource: q.sub.Name, Namespace: q.ns, Name: q.name, ResourceRequest: true, Path: q.r.URL.Path}
	d, reason, err := q.Authorize.Authorize(ctx, at)
	if d == authorize.Allow {
		return nil
	}
	if err != nil {
		return fmt.Errorf("authorize create of %s/%s: %w", q.kind.Resource, q.sub.Name, err)
	}
	return authorize.Forbidden(at, reason)
}
