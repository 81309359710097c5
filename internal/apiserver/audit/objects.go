// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// Object is the object of a request: an API object, or options.
type Object interface {
	metav1.Object
	runtime.Object
}

// Request adds the request's object to the event of ctx's request, as it was decoded: in the version in which it was
// sent, with defaults, before admission. Events of level Request contain the object; events of level Metadata contain
// its name and similar data. It is encoded only if the policy needs it.
func Request(ctx context.Context, obj Object, gvk schema.GroupVersionKind, r schema.GroupVersionResource, subresource string) {
	ac := audit.AuditContextFrom(ctx)
	if ac == nil || ac.GetEventLevel().Less(auditinternal.LevelMetadata) {
		return
	}
	audit.LogRequestObject(ctx, &sent{Object: obj}, gvk.GroupVersion(), r, subresource, encoder{gvk, ac.GetEventLevel()})
}

// RequestOptions is Request for options, which have no name.
func RequestOptions(ctx context.Context, o *metav1.DeleteOptions, gvk schema.GroupVersionKind, r schema.GroupVersionResource,
	subresource string) {
	ac := audit.AuditContextFrom(ctx)
	if ac == nil || ac.GetEventLevel().Less(auditinternal.LevelMetadata) {
		return
	}
	audit.LogRequestObject(ctx, o, gvk.GroupVersion(), r, subresource, encoder{gvk, ac.GetEventLevel()})
}

// Patch is Request for a patch: JSON, or YAML for which convert gives JSON.
func Patch(ctx context.Context, patch []byte, convert func([]byte) ([]byte, error)) {
	ac := audit.AuditContextFrom(ctx)
	if ac == nil || ac.GetEventLevel().Less(auditinternal.LevelRequest) {
		return
	}
	var err error
	if convert != nil {
		if patch, err = convert(patch); err != nil {
			return // the request is rejected for that
		}
	}
	if line, err := json.Marshal(json.RawMessage(patch)); err == nil {
		ac.LogRequestPatch(line)
	}
}

// Status records the response's status in the event of ctx's request.
func Status(ctx context.Context, s *metav1.Status) {
	ac := audit.AuditContextFrom(ctx)
	if ac == nil || ac.GetEventLevel().Less(auditinternal.LevelMetadata) {
		return
	}
	var obj *runtime.Unknown
	if ac.GetEventLevel() == auditinternal.LevelRequestResponse {
		obj = &runtime.Unknown{Raw: appendAny(nil, s), ContentType: runtime.ContentTypeJSON}
	}
	ac.LogResponseObject(s, obj)
}

// sent is the object of a request, in a form that the library can strip of managed fields without a deep copy.
type sent struct {
	Object
	bare bool
}

func (s *sent) DeepCopyObject() runtime.Object {
	c := *s
	return &c
}

func (s *sent) SetManagedFields([]metav1.ManagedFieldsEntry) { s.bare = true }

// encoder is the codec that the library uses: it encodes objects as JSON of the kind, and nothing below level Request.
type encoder struct {
	gvk   schema.GroupVersionKind
	level auditinternal.Level
}

var _ runtime.NegotiatedSerializer = encoder{}

func (e encoder) SupportedMediaTypes() []runtime.SerializerInfo {
	return []runtime.SerializerInfo{{MediaType: runtime.ContentTypeJSON}}
}

func (e encoder) EncoderForVersion(runtime.Encoder, runtime.GroupVersioner) runtime.Encoder { return e }

func (e encoder) DecoderToVersion(runtime.Decoder, runtime.GroupVersioner) runtime.Decoder {
	panic("audit decodes nothing")
}

func (e encoder) Identifier() runtime.Identifier { return "" }

func (e encoder) Encode(obj runtime.Object, w io.Writer) error {
	if e.level.Less(auditinternal.LevelRequest) {
		return nil
	}
	s, wrapped := obj.(*sent)
	if wrapped {
		obj = s.Object
	}
	was := obj.GetObjectKind().GroupVersionKind()
	obj.GetObjectKind().SetGroupVersionKind(e.gvk)
	b, err := json.Marshal(obj)
	obj.GetObjectKind().SetGroupVersionKind(was)
	if err != nil {
		return fmt.Errorf("encode object: %w", err)
	}
	b = bytes.TrimRight(b, "\n")
	if wrapped && s.bare {
		b = withoutManagedFields(b)
	}
	_, err = w.Write(b)
	return err
}

// answered converts a response's body to an object for an event: JSON on one line. It returns nil if the body is not an
// API object.
func answered(h http.Header, body []byte) ([]byte, error) {
	if h.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			return nil, fmt.Errorf("read answer: %w", err)
		}
		if body, err = io.ReadAll(z); err != nil {
			return nil, fmt.Errorf("read answer: %w", err)
		}
	}
	media, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	var err error
	switch media {
	case runtime.ContentTypeJSON:
	case runtime.ContentTypeYAML:
		if body, err = yaml.YAMLToJSON(body); err != nil {
			return nil, fmt.Errorf("read answer: %w", err)
		}
	case runtime.ContentTypeCBOR:
		var v any
		if err = cbor.Unmarshal(bytes.TrimPrefix(body, []byte("\xd9\xd9\xf7")), &v); err == nil {
			body, err = json.Marshal(v)
		}
		if err != nil {
			return nil, fmt.Errorf("read answer: %w", err)
		}
	case runtime.ContentTypeProtobuf:
		if body, err = fromProtobuf(body); err != nil {
			return nil, fmt.Errorf("read answer: %w", err)
		}
	default:
		return nil, nil
	}
	if body = bytes.TrimRight(body, "\n"); bytes.HasPrefix(body, []byte("{\n")) { // it is indented
		var line bytes.Buffer
		if err := json.Compact(&line, body); err != nil {
			return nil, fmt.Errorf("read answer: %w", err)
		}
		body = line.Bytes()
	}
	if !bytes.HasPrefix(body, []byte(`{"kind":"`)) && !bytes.HasPrefix(body, []byte(`{"apiVersion":"`)) {
		return nil, nil
	}
	return body, nil
}

func fromProtobuf(body []byte) ([]byte, error) {
	raw, ok := bytes.CutPrefix(body, []byte("k8s\x00"))
	if !ok {
		return nil, errors.New("no protobuf object")
	}
	var u runtime.Unknown
	if err := u.Unmarshal(raw); err != nil {
		return nil, err
	}
	gvk := u.GroupVersionKind()
	var obj runtime.Object
	switch { // kinds of any group
	case gvk.Kind == "Status":
		obj = &metav1.Status{}
	case gvk.Kind == "PartialObjectMetadata" && gvk.Group == metav1.GroupName:
		obj = &metav1.PartialObjectMetadata{}
	case gvk.Kind == "PartialObjectMetadataList" && gvk.Group == metav1.GroupName:
		obj = &metav1.PartialObjectMetadataList{}
	default:
		var err error
		if obj, err = scheme.Scheme.New(gvk); err != nil {
			return nil, err
		}
	}
	m, ok := obj.(interface{ Unmarshal([]byte) error })
	if !ok {
		return nil, fmt.Errorf("%s has no protobuf form", gvk.Kind)
	}
	if err := m.Unmarshal(u.Raw); err != nil {
		return nil, err
	}
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	return json.Marshal(obj)
}
