// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
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
		if slices.Contains(s.Verbs, verb) || verb == "" && slices.Contains(s.Verbs, "get") && q.r.Method == http.MethodHead {
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
	return &decoder{gvk: gvk, empty: empty, fill: fill, others: []schema.GroupVersion{{Group: q.kind.Group, Version: q.ver().Name}}}
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
	media, err := q.inputMedia(true)
	if err != nil {
		return err
	}
	body, err := q.body()
	if err != nil {
		return err
	}
	obj, strict, err := q.belowDecoder(q.sub.Create.New, q.sub.Create.Default).decode(body, media, directive(opts.FieldValidation))
	if err != nil {
		return err
	}
	q.warnStrict(strict)
	ctx, cancel := q.writing()
	defer cancel()
	if err := sameNamespace(q.ns, obj); err != nil {
		return err
	}
	at := q.attributes(admit.Create, obj, nil, opts, len(opts.DryRun) > 0)
	if err := q.mutate(ctx, at); err != nil {
		return err
	}
	if err := q.Admission.Validate(ctx, &Backend{q.API}, at); err != nil {
		return err
	}
	out, err := q.sub.Create.Do(ctx, &Backend{q.API}, q.ns, q.name, at.Object, opts)
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

func (q *req) respondView(code int, parent resource.Object) error {
	v, err := q.sub.View.Get(parent)
	if err != nil {
		return err
	}
	gvk := q.below()
	return q.respondOther(code, v, gvk.GroupVersion().String(), gvk.Kind)
}

func getView(q *req) error {
	if err := q.negotiate(); err != nil {
		return err
	}
	f, err := q.read()
	if err != nil {
		return err
	}
	return q.respondView(http.StatusOK, f.Hub)
}

func updateView(q *req) error {
	if err := q.negotiate(); err != nil {
		return err
	}
	opts, err := q.updateOptions()
	if err != nil {
		return err
	}
	media, err := q.inputMedia(true)
	if err != nil {
		return err
	}
	body, err := q.body()
	if err != nil {
		return err
	}
	obj, strict, err := q.belowDecoder(q.sub.View.New, nil).decode(body, media, directive(opts.FieldValidation))
	if err != nil {
		return err
	}
	q.warnStrict(strict)
	if err := sameNamespace(q.ns, obj); err != nil {
		return err
	}
	if err := sameName(q.name, obj); err != nil {
		return err
	}
	c := q.alteration(toCreate(opts), opts, len(opts.DryRun) > 0)
	c.uid = obj.GetUID()
	return q.alterView(c, opts.FieldManager, func(resource.Object) (resource.Object, error) {
		return obj.DeepCopyObject().(resource.Object), nil
	})
}

func patchView(q *req) error {
	p, err := q.readPatch()
	if err != nil {
		return err
	}
	gvk := q.below()
	p.dec = q.belowDecoder(q.sub.View.New, nil)
	update := patchToUpdate(p.opts)
	c := q.alteration(toCreate(update), update, len(p.opts.DryRun) > 0)
	return q.alterView(c, p.opts.FieldManager, func(old resource.Object) (resource.Object, error) {
		kind := p.kind
		cur := old.DeepCopyObject().(resource.Object)
		switch kind {
		case types.StrategicMergePatchType:
			return p.strategicMerge(cur)
		case types.ApplyYAMLPatchType:
			// a view has few fields and no lists: what is applied replaces what it names
			j, err := yamlToJSON(p.bytes)
			if err != nil {
				return nil, err
			}
			merge := *p
			merge.bytes, merge.kind = j, types.MergePatchType
			p = &merge
		}
		cur.GetObjectKind().SetGroupVersionKind(gvk)
		b, err := json.Marshal(cur)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", gvk.Kind, err)
		}
		obj, err := p.onJSON(bytes.TrimSpace(b))
		if err != nil {
			return nil, err
		}
		return obj, sameName(q.name, obj)
	})
}

// alterView changes the parent through its view.
func (q *req) alterView(c *alteration, managerName string, edit func(old resource.Object) (resource.Object, error)) error {
	ctx, cancel := q.writing()
	defer cancel()
	view := q.sub.View
	begin := view.Get
	if view.Edit != nil {
		begin = view.Edit
	}
	c.strategy = &q.kind.Strategy
	validate := c.validate
	c.validate = nil
	c.make = func(ctx context.Context, old *watchcache.Forms) (resource.Object, error) {
		was, err := begin(old.Hub)
		if err != nil {
			return nil, err
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
		parent := own(old)
		if err := view.Set(v, parent); err != nil {
			return nil, err
		}
		if rv := v.GetResourceVersion(); rv != "" {
			parent.SetResourceVersion(rv)
		}
		return q.updateFields(old.Hub, parent, q.sub.Name, managerName)
	}
	f, _, err := q.alter(ctx, c)
	if err != nil {
		return err
	}
	return q.respondView(http.StatusOK, f.Hub)
}

// connect hands the request to a handler that streams.
func connect(q *req) error {
	s := q.sub.Connect
	if q.sub.Name == "log" { // the others stream whatever the client says that it takes
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
	at := q.attributes(admit.Connect, nil, nil, opts, false)
	if err := q.Admission.Mutate(ctx, &Backend{q.API}, at); err != nil {
		return err
	}
	if err := q.Admission.Validate(ctx, &Backend{q.API}, at); err != nil {
		return err
	}
	path := ""
	if len(q.info.Parts) > 3 {
		path = "/" + strings.Join(q.info.Parts[3:], "/")
	}
	if strings.HasSuffix(q.info.Path, "/") && !strings.HasSuffix(path, "/") {
		path += "/"
	}
	h, err := s.Handler(ctx, &Backend{q.API}, q.ns, q.name, opts, path)
	if err != nil {
		return err
	}
	h.ServeHTTP(q.w, q.r)
	return nil
}
