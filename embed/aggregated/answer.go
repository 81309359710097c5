// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregated

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/internal/apiserver/negotiate"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
	"github.com/mortise-dev/mortise/internal/apiserver/table"
)

// offer is the list of media types of responses.
var offer = negotiate.Offer{Media: []string{negotiate.JSON, negotiate.YAML}, Transforms: true}

// form returns the form that the client requests.
func form(r *http.Request) (negotiate.Form, *table.Target, error) {
	header := r.Header.Get("Accept")
	f, ok := negotiate.Parse(header).Choose(header, &offer)
	if !ok {
		return f, nil, status.Media(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
			"only the following media types are accepted: application/json, application/yaml")
	}
	if f.Target == nil {
		return f, nil, nil
	}
	t := &table.Target{Kind: f.Target.Kind, Group: f.Target.Group, Version: f.Target.Version}
	if !t.Known() {
		return f, nil, status.Media(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, "no such form of an object: "+f.Target.Kind)
	}
	return f, t, nil
}

// typed returns an object with its apiVersion and kind. It does not change obj.
func (res *Resource) typed(obj Object) Object {
	if obj.GetObjectKind().GroupVersionKind() == res.gvk() {
		return obj
	}
	obj = obj.DeepCopyObject().(Object)
	obj.GetObjectKind().SetGroupVersionKind(res.gvk())
	return obj
}

func (res *Resource) converter(r *http.Request, t *table.Target) (*table.Converter, error) {
	o, err := table.ParseOptions(r.URL.Query())
	if err != nil {
		return nil, err
	}
	return &table.Converter{Columns: res.columns(), Target: *t, Options: o, Object: func(obj Object) (runtime.RawExtension, error) {
		return runtime.RawExtension{Object: res.typed(obj)}, nil
	}}, nil
}

func (res *Resource) writeObject(w http.ResponseWriter, r *http.Request, code int, obj Object) error {
	if obj == nil {
		return apierrors.NewInternalError(fmt.Errorf("%s returned no object", r.Method))
	}
	f, t, err := form(r)
	if err != nil {
		return err
	}
	var out any = res.typed(obj)
	if t != nil {
		if err := t.Check(false, res.Kind); err != nil {
			return err
		}
		if out, err = res.turned(r, t, obj); err != nil {
			return err
		}
	}
	return write(w, r, f, code, out)
}

// turned converts one object to the requested form.
func (res *Resource) turned(r *http.Request, t *table.Target, obj Object) (any, error) {
	if t.Kind != "Table" {
		return table.Partial(*t, obj), nil
	}
	c, err := res.converter(r, t)
	if err != nil {
		return nil, err
	}
	return c.One(obj)
}

func (res *Resource) writeList(w http.ResponseWriter, r *http.Request, l List) error {
	f, t, err := form(r)
	if err != nil {
		return err
	}
	meta := metav1.ListMeta{ResourceVersion: l.ResourceVersion, Continue: l.Continue}
	if t != nil {
		if err := t.Check(true, res.Kind+"List"); err != nil {
			return err
		}
		if t.Kind != "Table" {
			return write(w, r, f, http.StatusOK, table.PartialList(*t, l.Items, meta))
		}
		c, err := res.converter(r, t)
		if err != nil {
			return err
		}
		out, err := c.List(l.Items, meta)
		if err != nil {
			return err
		}
		return write(w, r, f, http.StatusOK, out)
	}
	out := struct {
		metav1.TypeMeta `json:",inline"`
		metav1.ListMeta `json:"metadata"`
		Items           []Object `json:"items"`
	}{metav1.TypeMeta{APIVersion: res.gvk().GroupVersion().String(), Kind: res.Kind + "List"}, meta, make([]Object, len(l.Items))}
	for i, obj := range l.Items {
		out.Items[i] = res.typed(obj)
	}
	return write(w, r, f, http.StatusOK, &out)
}

func writeJSON(w http.ResponseWriter, r *http.Request, code int, obj any) error {
	return write(w, r, negotiate.Form{Media: negotiate.JSON}, code, obj)
}

func write(w http.ResponseWriter, r *http.Request, f negotiate.Form, code int, obj any) error {
	b, err := json.Marshal(obj)
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	switch {
	case f.Media == negotiate.YAML:
		if b, err = yaml.JSONToYAML(b); err != nil {
			return fmt.Errorf("encode answer: %w", err)
		}
	case f.Pretty || negotiate.Pretty(r):
		var out bytes.Buffer
		if err := json.Indent(&out, b, "", "  "); err != nil {
			return fmt.Errorf("encode answer: %w", err)
		}
		b = out.Bytes()
	default:
		b = append(b, '\n')
	}
	w.Header().Set("Content-Type", f.Media)
	w.Header().Set("Cache-Control", "no-cache, private")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(code)
	if r.Method != http.MethodHead {
		_, _ = w.Write(b) // a client that went away needs no answer
	}
	return nil
}

// watch sends events until the client leaves, the requested time is over, or there are no more events.
func (res *Resource) watch(ctx context.Context, w http.ResponseWriter, r *http.Request, req *Request) error {
	_, t, err := form(r)
	if err != nil {
		return err
	}
	var c *table.Converter
	if t != nil && t.Kind == "Table" {
		if c, err = res.converter(r, t); err != nil {
			return err
		}
	}
	if s := req.Options.TimeoutSeconds; s != nil && *s > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(*s)*time.Second)
		defer cancel()
	}
	events, err := res.Watch(ctx, req)
	if err != nil {
		return err
	}
	defer events.Stop()
	w.Header().Set("Content-Type", negotiate.JSON)
	w.Header().Set("Cache-Control", "no-cache, private")
	w.WriteHeader(http.StatusOK)
	out, flush := json.NewEncoder(w), http.NewResponseController(w)
	if err := flush.Flush(); err != nil {
		return nil //nolint:nilerr // the client is gone
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-events.ResultChan():
			if !ok {
				return nil
			}
			obj, err := res.event(req, t, c, e)
			if err != nil {
				e.Type, obj = watch.Error, status.Of(err)
			}
			if obj == nil {
				continue
			}
			if out.Encode(struct {
				Type   watch.EventType `json:"type"`
				Object any             `json:"object"`
			}{e.Type, obj}) != nil || flush.Flush() != nil {
				return nil // the client is gone
			}
		}
	}
}

// event returns an event's object in the requested form; nil: skip the event.
func (res *Resource) event(req *Request, t *table.Target, c *table.Converter, e watch.Event) (any, error) {
	obj, ok := e.Object.(Object)
	switch {
	case !ok || e.Type == watch.Error: // a Status
		return e.Object, nil
	case e.Type != watch.Bookmark && !(req.wanted(obj) && (req.Namespace == "" || obj.GetNamespace() == req.Namespace)):
		return nil, nil
	case c != nil:
		return c.Event(obj)
	case t != nil:
		return table.Partial(*t, obj), nil
	}
	return res.typed(obj), nil
}
