// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"

	"github.com/mortise-dev/mortise/internal/apiserver/explain"
	"github.com/mortise-dev/mortise/internal/apiserver/negotiate"
	"github.com/mortise-dev/mortise/internal/apiserver/registry"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
	"github.com/mortise-dev/mortise/resource"
)

// schemeName is what kube-apiserver calls the scheme that a kind is not registered in.
const schemeName = "pkg/runtime/scheme.go:111"

// bodyTimeout is how long a client may take to send a body.
const bodyTimeout = time.Minute

// body reads the request's body within the bound.
func (q *req) body() ([]byte, error) {
	if q.r.Body == nil || q.r.Body == http.NoBody {
		return nil, nil
	}
	// a body that trickles in must not hold a request for ever; in-process bodies have no deadline
	conn := http.NewResponseController(q.w)
	_ = conn.SetReadDeadline(time.Now().Add(bodyTimeout))
	defer func() { _ = conn.SetReadDeadline(time.Time{}) }()
	if q.r.ContentLength > q.MaxBody {
		// reads and drops what is within the limit, so that a client that has sent its whole body reads the response
		_, _ = io.CopyN(io.Discard, q.r.Body, q.MaxBody+1)
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", q.MaxBody))
	}
	b, err := readAll(q.r.Body, q.r.ContentLength, q.MaxBody+1)
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", q.MaxBody))
		}
		return nil, apierrors.NewBadRequest(fmt.Sprintf("unable to read the request's body: %v", err))
	}
	if int64(len(b)) > q.MaxBody {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", q.MaxBody))
	}
	return b, nil
}

// maxAhead is how much room a body gets that is announced and has not come.
const maxAhead = 64 << 10

// readAll reads a body of an announced length, -1 if there is none, up to a limit.
func readAll(body io.Reader, announced, limit int64) ([]byte, error) {
	body = io.LimitReader(body, limit)
	if announced <= 0 || announced > maxAhead {
		var buf bytes.Buffer
		if announced > 0 {
			buf.Grow(maxAhead)
		}
		_, err := buf.ReadFrom(body)
		return buf.Bytes(), err
	}
	b := make([]byte, announced+1) // so that the last read sees the end
	for n := 0; n < len(b); {
		k, err := body.Read(b[n:])
		n += k
		if errors.Is(err, io.EOF) {
			return b[:n], nil
		}
		if err != nil {
			return nil, err
		}
	}
	more, err := io.ReadAll(body) // that was not announced
	return append(b, more...), err
}

// inputMedia is the medium of the request's body.
func (q *req) inputMedia() (string, error) {
	ct := q.r.Header.Get("Content-Type")
	if ct == "" || ct == mediaJSON {
		return mediaJSON, nil
	}
	if m, ok := negotiate.Body(ct, q.types()); ok {
		return m, nil
	}
	return "", unsupportedMedia(q.types())
}

func unsupportedMedia(accepted []string) error {
	return status.Media(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
		"the body of the request was in an unknown format - accepted media types include: "+strings.Join(accepted, ", "))
}

// decoder turns a request's body into an object.
type decoder struct {
	gvk   schema.GroupVersionKind // of the object that the path takes
	empty func() resource.Object
	// coerce, prune and fill are the version's Coerce, Prune and Default; nil: nothing.
	coerce func(resource.Object) error
	prune  func(resource.Object) []string
	fill   func(resource.Object)
	// served reports whether a kind is served, for the message that refuses it; nil: see known.
	served func(schema.GroupVersionKind) bool
	// name is that of the path, which an object that is replaced must have; empty: it may have any.
	name string
	// mute refuses everything with the same words, as upstream does for the scales of custom resources.
	mute bool
	// others are further group versions in which the body may come.
	others []schema.GroupVersion
	// said is the kind that the body of an update names, if it has no Go type and is not of the path's kind. The update is refused for
	// that only after its resourceVersion was compared.
	said schema.GroupVersionKind
}

func (q *req) decoder() *decoder {
	v := q.ver()
	return &decoder{
		gvk: q.kind.GroupVersionKind(v.Name), name: q.name, empty: v.New, coerce: v.Coerce, prune: v.Prune, fill: v.Default,
		served: func(gvk schema.GroupVersionKind) bool {
			for _, k := range q.kinds.Group(gvk.Group) {
				if k.Descriptor.Kind == gvk.Kind {
					return !k.Unstructured && k.Version(gvk.Version) != nil
				}
			}
			return false
		},
	}
}

// known reports whether a kind exists, in upstream or among the served kinds.
func (d *decoder) known(gvk schema.GroupVersionKind) bool {
	if g := d.gvk.Group; g == "apiextensions.k8s.io" || g == "apiregistration.k8s.io" { // upstream serves these on their own
		return gvk.GroupVersion() == d.gvk.GroupVersion() && d.served != nil && d.served(gvk)
	}
	return scheme.Scheme.Recognizes(gvk) || d.served != nil && d.served(gvk)
}

// decode reads a body. Strict errors are what fieldValidation is about: the object is whole in spite of them.
func (d *decoder) decode(body []byte, media, validation string) (obj resource.Object, strict []error, err error) {
	var said schema.GroupVersionKind
	switch media {
	case mediaProtobuf:
		obj, said, err = d.protobuf(body)
	case mediaCBOR:
		obj, said, strict, err = d.cbor(body, validation != metav1.FieldValidationIgnore)
	default:
		j := body
		if media == mediaYAML {
			var dup error
			if validation != metav1.FieldValidationIgnore {
				if _, dup = yaml.YAMLToJSONStrict(body); dup != nil {
					strict = append(strict, dup)
				}
			}
			if j, err = yaml.YAMLToJSON(body); err != nil {
				return nil, nil, d.refuse(err, schema.GroupVersionKind{}, body)
			}
		}
		var more []error
		obj, said, more, err = d.json(j, body, validation != metav1.FieldValidationIgnore)
		strict = append(strict, more...)
	}
	if err != nil {
		return nil, nil, err
	}
	if len(strict) > 0 && validation == metav1.FieldValidationStrict {
		return nil, nil, d.refuse(runtime.NewStrictDecodingError(strict), said, body)
	}
	if gv := said.GroupVersion(); gv != d.gvk.GroupVersion() && !slices.Contains(d.others, gv) {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)", gv,
			d.gvk.GroupVersion()))
	}
	return obj, strict, nil
}

func (d *decoder) refuse(err error, said schema.GroupVersionKind, body []byte) error {
	if d.mute {
		return apierrors.NewBadRequest(fmt.Sprintf("no kind is registered for the type v1.%s in scheme %q", d.gvk.Kind, schemeName))
	}
	if said.Kind != "" {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", said.Kind, said.Version, d.gvk.Kind, err))
	}
	return apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v (%s)", d.gvk.Kind, err,
		summary(body)))
}

func summary(body []byte) string {
	const most = 30
	switch {
	case len(body) == 0:
		return "<empty>"
	case body[0] == '{':
		if len(body) > most {
			return string(body[:most]) + " ..."
		}
		return string(body)
	case len(body) > most:
		return hex.EncodeToString(body[:most]) + " ..."
	}
	return hex.EncodeToString(body)
}

// json decodes the body first and looks at its kind afterwards, since nearly always it is the right one.
func (d *decoder) json(body, original []byte, strictly bool) (resource.Object, schema.GroupVersionKind, []error, error) {
	obj := d.empty()
	var strict []error
	var err error
	if u, ok := obj.(*unstructured.Unstructured); ok {
		m := map[string]any{}
		strict, err = unmarshal(body, &m, strictly)
		u.Object = m
		if m == nil {
			u.Object = map[string]any{}
		}
	} else {
		strict, err = unmarshal(body, obj, strictly)
	}
	var said schema.GroupVersionKind
	if err == nil {
		said = obj.GetObjectKind().GroupVersionKind()
	}
	if err != nil || said.Kind != d.gvk.Kind || said.GroupVersion() != d.gvk.GroupVersion() {
		// the slow way, whose errors have the text that clients know
		found, ferr := jsonserializer.DefaultMetaFactory.Interpret(body)
		if ferr != nil {
			return nil, said, nil, d.refuse(ferr, schema.GroupVersionKind{}, original)
		}
		if _, free := obj.(*unstructured.Unstructured); free {
			if said, err = d.freeKind(*found, err, body, original, strictly); err != nil {
				return nil, said, nil, err
			}
			return d.finish(obj, said, strict, strictly)
		}
		said = withDefaults(*found, d.gvk)
		if said.Kind != d.gvk.Kind || said.GroupVersion() != d.gvk.GroupVersion() && !slices.Contains(d.others, said.GroupVersion()) {
			if err := d.wrongKind(said, original, func(o runtime.Object) error { _, err := unmarshal(body, o, false); return err }); err != nil {
				return nil, said, nil, err
			}
		}
		if err != nil {
			return nil, said, nil, d.refuse(err, said, original)
		}
	}
	return d.finish(obj, said, strict, strictly)
}

// freeKind returns the kind that an object without a Go type names, or the error that refuses it. The object must name a kind; the
// version is checked before the kind.
func (d *decoder) freeKind(found schema.GroupVersionKind, err error, body, original []byte, strictly bool) (schema.GroupVersionKind,
	error) {
	if err != nil {
		said := withDefaults(found, d.gvk)
		return said, d.refuse(err, said, original)
	}
	if found.Kind == "" {
		var said schema.GroupVersionKind
		if !strictly {
			said = withDefaults(found, d.gvk)
		}
		return said, d.refuse(runtime.NewMissingKindErr(string(original)), said, original)
	}
	if found.Kind != d.gvk.Kind && found.GroupVersion() == d.gvk.GroupVersion() {
		if d.name != "" {
			d.said = found
			return found, nil
		}
		name := ""
		if m := (metav1.PartialObjectMetadata{}); kjson.UnmarshalCaseSensitivePreserveInts(body, &m) == nil {
			name = m.Name
		}
		return found, registry.KindMismatch(found, d.gvk.Kind, name)
	}
	return found, nil
}

func withDefaults(found, defaults schema.GroupVersionKind) schema.GroupVersionKind {
	if found.Kind == "" {
		found.Kind = defaults.Kind
	}
	if found.Version == "" && found.Group == "" {
		found.Group, found.Version = defaults.Group, defaults.Version
	}
	if found.Version == "" {
		found.Version = defaults.Version
	}
	return found
}

// wrongKind returns the error that refuses an object of another kind than the path's, nil if only the version differs, which is
// refused later.
//
// As upstream does, it first decodes the body as the kind that the body names, by unmarshal.
func (d *decoder) wrongKind(said schema.GroupVersionKind, body []byte, unmarshal func(runtime.Object) error) error {
	if !d.known(said) {
		return d.refuse(fmt.Errorf("no kind %q is registered for version %q in scheme %q", said.Kind, said.GroupVersion(), schemeName), said,
			body)
	}
	if said.Kind == d.gvk.Kind && (said.Group == d.gvk.Group || said.Kind == "Scale") { // scales of all groups are one kind
		return nil
	}
	other := said.Version + "." + said.Kind
	if obj, err := scheme.Scheme.New(said); err == nil {
		other = reflect.TypeOf(obj).Elem().String()
		if err := unmarshal(obj); err != nil {
			return d.refuse(err, said, body)
		}
	}
	return d.refuse(fmt.Errorf("converting (%s) to (%s): unknown conversion", other, internalType(d.gvk)), said, body)
}

func (d *decoder) finish(obj resource.Object, said schema.GroupVersionKind, strict []error, strictly bool) (resource.Object,
	schema.GroupVersionKind, []error, error) {
	u, free := obj.(*unstructured.Unstructured)
	switch {
	case !free:
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	case said.GroupVersion() != d.gvk.GroupVersion():
		return obj, said, strict, nil // it is refused for that
	default:
		if m := u.Object["metadata"]; m != nil {
			if _, ok := m.(map[string]any); !ok {
				return nil, said, nil, d.refuse(fmt.Errorf("json: cannot unmarshal %s into Go value of type v1.ObjectMeta", jsonWord(m)), said, nil)
			}
		}
		u.SetGroupVersionKind(d.gvk)
	}
	if d.coerce != nil {
		if err := d.coerce(obj); err != nil {
			return nil, said, nil, d.refuse(err, said, nil)
		}
	}
	if d.prune != nil {
		for _, path := range d.prune(obj) {
			if strictly {
				strict = append(strict, errors.New(`unknown field "`+path+`"`))
			}
		}
	}
	if d.fill != nil {
		d.fill(obj)
	}
	return obj, said, strict, nil
}

// jsonWord is what encoding/json calls a value.
func jsonWord(v any) string {
	switch v.(type) {
	case []any:
		return "array"
	case string:
		return "string"
	case bool:
		return "bool"
	}
	return "number"
}

// unmarshal decodes JSON into a zero value, by the quick way if it is as usual.
func unmarshal(body []byte, into any, strictly bool) ([]error, error) {
	if v := reflect.ValueOf(into); v.Kind() == reflect.Pointer && v.Elem().Kind() == reflect.Struct {
		if decodeTyped(body, into) {
			return nil, nil
		}
		v.Elem().SetZero()
	}
	if strictly {
		return kjson.UnmarshalStrict(body, into)
	}
	return nil, kjson.UnmarshalCaseSensitivePreserveInts(body, into)
}

// protobufMagic begins every protobuf body: what follows is a runtime.Unknown.
const protobufMagic = "k8s\x00"

type unmarshaler interface {
	Reset()
	Unmarshal(data []byte) error
}

func (d *decoder) protobuf(body []byte) (resource.Object, schema.GroupVersionKind, error) {
	var said schema.GroupVersionKind
	refuse := func(err error) (resource.Object, schema.GroupVersionKind, error) {
		return nil, said, d.refuse(err, said, body)
	}
	raw, ok := bytes.CutPrefix(body, []byte(protobufMagic))
	switch {
	case len(body) == 0:
		return refuse(errors.New("empty data"))
	case ok && len(raw) == 0:
		return refuse(errors.New("empty body"))
	case !ok:
		return refuse(errors.New("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"))
	}
	var u runtime.Unknown
	if err := u.Unmarshal(raw); err != nil {
		return refuse(err)
	}
	if err := checkDepth(u.Raw); err != nil {
		return refuse(err)
	}
	said = withDefaults(schema.FromAPIVersionAndKind(u.APIVersion, u.Kind), d.gvk)
	unmarshal := func(obj runtime.Object) error {
		m, ok := obj.(unmarshaler)
		if !ok {
			return fmt.Errorf("object %T does not implement the protobuf marshalling interface and cannot be decoded", obj)
		}
		return m.Unmarshal(u.Raw)
	}
	if said.Kind != d.gvk.Kind || said.GroupVersion() != d.gvk.GroupVersion() && !slices.Contains(d.others, said.GroupVersion()) {
		if err := d.wrongKind(said, body, unmarshal); err != nil {
			return nil, said, err
		}
	}
	obj := d.empty()
	if err := unmarshal(obj); err != nil {
		return refuse(err)
	}
	if d.fill != nil {
		d.fill(obj)
	}
	return obj, said, nil
}

// object reads the body as an object of the path's kind, in its hub form.
func (q *req) object(fieldValidation string) (resource.Object, error) {
	media, err := q.inputMedia()
	if err != nil {
		return nil, err
	}
	body, err := q.body()
	if err != nil {
		return nil, err
	}
	explain.From(q.ctx).Body(media, body)
	d := q.decoder()
	obj, strict, err := d.decode(body, media, directive(fieldValidation))
	if err != nil {
		return nil, err
	}
	q.said = d.said
	q.warnStrict(strict)
	q.auditObject(obj, q.kind.GroupVersionKind(q.ver().Name))
	return q.toHub(obj)
}

func (q *req) toHub(obj resource.Object) (resource.Object, error) {
	v := q.ver()
	if v.ToHub == nil || v.Deferred {
		return obj, nil
	}
	hub, err := v.ToHub(obj)
	if err != nil {
		return nil, fmt.Errorf("convert from version %s: %w", v.Name, err)
	}
	return hub, nil
}

// strictTexts are the complaints in one error: that of a YAML decoder has one a line.
func strictTexts(text string) []string {
	const begin = "yaml: unmarshal errors:\n"
	rest, ok := strings.CutPrefix(text, begin)
	if !ok {
		rest, ok = strings.CutPrefix(text, "error converting YAML to JSON: "+begin)
	}
	if !ok {
		return []string{text}
	}
	lines := strings.Split(rest, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return lines
}

func (q *req) warnStrict(strict []error) {
	for _, e := range strict {
		for _, text := range strictTexts(e.Error()) {
			q.warn.AddWarning("", text)
		}
	}
}
