// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/internal/apiserver/audit"
	"github.com/mortise-dev/mortise/internal/apiserver/negotiate"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
	"github.com/mortise-dev/mortise/internal/apiserver/table"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
)

// respond answers with one object.
func (q *req) respond(code int, f *watchcache.CachedObject) error {
	if q.accept.target != nil {
		return q.respondAs(code, false, []*watchcache.CachedObject{f}, metav1.ListMeta{ResourceVersion: f.Hub.GetResourceVersion()})
	}
	media := q.accept.media
	if media == mediaYAML || media == mediaJSON && q.accept.pretty {
		b, err := whole(f, q.version, mediaJSON)
		if err != nil {
			return err
		}
		return q.writeJSON(code, b)
	}
	const most = 64 << 10
	room := wholes.Get().(*[]byte)
	defer wholes.Put(room)
	b, err := appendWhole((*room)[:0], f, q.version, media)
	if err != nil {
		return err
	}
	if cap(b) <= most {
		*room = b[:0]
	}
	return q.write(code, media, b)
}

// respondOther answers with an object that is not of the path's kind: a Status, a scale, a review.
func (q *req) respondOther(code int, obj runtime.Object, apiVersion, kind string) error {
	if st, ok := obj.(*metav1.Status); ok {
		audit.Status(q.r.Context(), st)
	}
	if q.accept.target != nil {
		if _, ok := obj.(*metav1.Status); !ok {
			t := internalType(schema.FromAPIVersionAndKind(apiVersion, kind))
			if q.kind.Unstructured {
				t = "v1." + kind
			}
			if err := q.accept.target.Check(false, "*"+t); err != nil {
				return err
			}
		}
		if r, ok := obj.(resource.Object); ok && q.accept.target.Kind == "PartialObjectMetadata" {
			return q.encode(code, table.Partial(*q.accept.target, r))
		}
		if r, ok := obj.(resource.Object); ok && q.accept.target.Kind == "Table" {
			c := &table.Converter{Target: *q.accept.target}
			if _, ok := r.(*autoscalingv1.Scale); ok {
				c.Columns = table.Scale{Custom: q.kind.Unstructured}
			}
			var err error
			if c.Options, err = table.ParseOptions(q.r.URL.Query()); err != nil {
				return err
			}
			t, err := c.One(r)
			if err != nil {
				return err
			}
			return q.encode(code, t)
		}
	}
	switch q.accept.media {
	case mediaProtobuf:
		if _, ok := obj.(interface{ Marshal() ([]byte, error) }); ok {
			raw, err := watchcache.EncodeBare(obj, watchcache.Protobuf)
			if err != nil {
				return err
			}
			return q.write(code, mediaProtobuf, envelope(apiVersion, kind, raw))
		}
	}
	gvk := obj.GetObjectKind()
	was := gvk.GroupVersionKind()
	if was.Kind == "" {
		obj = obj.DeepCopyObject()
		setTypeMeta(obj, apiVersion, kind)
	}
	return q.encode(code, obj)
}

// encode answers with something that has no kept bytes.
func (q *req) encode(code int, v any) error {
	switch q.accept.media {
	case mediaCBOR:
		b, err := encodeCBOR(v)
		if err != nil {
			return fmt.Errorf("encode answer: %w", err)
		}
		return q.write(code, mediaCBOR, b)
	case mediaProtobuf:
		if m, ok := v.(interface {
			runtime.Object
			Marshal() ([]byte, error)
		}); ok {
			raw, err := m.Marshal()
			if err != nil {
				return fmt.Errorf("encode answer: %w", err)
			}
			av, kind := m.GetObjectKind().GroupVersionKind().ToAPIVersionAndKind()
			return q.write(code, mediaProtobuf, envelope(av, kind, raw))
		}
		return status.Media(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
			fmt.Sprintf("object %T does not implement the protobuf marshalling interface and cannot be encoded to a protobuf message", v))
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	return q.writeJSON(code, append(b, '\n'))
}

// writeJSON answers with JSON, or with YAML or indented JSON made from it.
func (q *req) writeJSON(code int, b []byte) error {
	switch {
	case q.accept.media == mediaYAML:
		y, err := yaml.JSONToYAML(b)
		if err != nil {
			return err // upstream's words: they are the answer
		}
		return q.write(code, mediaYAML, y)
	case q.accept.pretty:
		var out bytes.Buffer
		if err := json.Indent(&out, bytes.TrimRight(b, "\n"), "", "  "); err != nil {
			return fmt.Errorf("indent answer: %w", err)
		}
		b = out.Bytes()
	}
	return q.write(code, mediaJSON, b)
}

func (q *req) headers(media string) {
	h := q.w.Header()
	h["Content-Type"] = []string{media}
	h["Cache-Control"] = []string{"no-cache, private"}
}

// write sends the answer's bytes. What a client that went away does not read is no error of the server.
func (q *req) write(code int, media string, b []byte) error {
	if len(b) > gzipFrom && negotiate.AcceptsGzip(q.r) {
		return q.stream(code, media, func(w *answer) error {
			_, err := w.Write(b)
			return err
		})
	}
	q.headers(media)
	q.w.Header()["Content-Length"] = []string{strconv.Itoa(len(b))}
	q.w.WriteHeader(code)
	_, _ = q.w.Write(b)
	return nil
}

// internalType is what upstream calls the unversioned Go type of a kind, in messages.
func internalType(gvk schema.GroupVersionKind) string {
	pkg, _, _ := strings.Cut(gvk.Group, ".")
	if pkg == "" || pkg == "events" {
		pkg = "core"
	}
	return pkg + "." + gvk.Kind
}

// goType is what upstream calls the Go type of a kind's objects or lists, in messages.
func goType(k *Kind, list bool) string {
	t := "*unstructured.Unstructured"
	if !k.Unstructured {
		t = "*" + internalType(schema.GroupVersionKind{Group: k.HubGroupVersionKind().Group, Kind: k.Descriptor.Kind})
	}
	if list {
		t += "List"
	}
	return t
}

// respondAs answers with a Table or with PartialObjectMetadata(List).
func (q *req) respondAs(code int, list bool, objects []*watchcache.CachedObject, meta metav1.ListMeta) error {
	t := *q.accept.target
	if !list && q.kind.Unstructured && t.Kind == "PartialObjectMetadataList" {
		return errors.New("content is not a list") // upstream's words
	}
	if err := t.Check(list, goType(q.kind, list)); err != nil {
		return err
	}
	if t.Kind == "Table" {
		tab, err := q.table(t, objects, meta)
		if err != nil {
			return err
		}
		return q.encode(code, tab)
	}
	if !list {
		return q.encode(code, table.Partial(t, objects[0].Hub))
	}
	return q.encode(code, table.PartialList(t, hubs(objects), meta))
}

func hubs(objects []*watchcache.CachedObject) []resource.Object {
	objs := make([]resource.Object, len(objects))
	for i, f := range objects {
		objs[i] = f.Hub
	}
	return objs
}

func (q *req) converter(t table.Target) (*table.Converter, error) {
	o, err := table.ParseOptions(q.r.URL.Query())
	if err != nil {
		return nil, err
	}
	return &table.Converter{Columns: q.ver().Columns, Target: t, Options: o, Object: func(hub resource.Object) (runtime.RawExtension, error) {
		b, err := whole(q.kind.NewCachedObject(hub), q.version, mediaJSON)
		return runtime.RawExtension{Raw: bytes.TrimRight(b, "\n")}, err
	}}, nil
}

func (q *req) table(t table.Target, objects []*watchcache.CachedObject, meta metav1.ListMeta) (*metav1.Table, error) {
	c, err := q.converter(t)
	if err != nil {
		return nil, err
	}
	return c.List(hubs(objects), meta)
}
