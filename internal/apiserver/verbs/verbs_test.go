// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/apiserver/requestinfo"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
)

func testKind() *Kind {
	d := &resource.Descriptor{
		Resource: "configmaps", Kind: "ConfigMap", ListKind: "ConfigMapList", Namespaced: true, Storage: "v1", Prefix: "configmaps",
		Versions: []resource.Version{{Name: "v1", New: func() resource.Object { return &corev1.ConfigMap{} }, Protobuf: true, Strategic: true}},
	}
	return watchcache.NewKind(d, nil, watchcache.NewViews(1<<20), nil)
}

func testRequest(method, target string) *req {
	r := httptest.NewRequest(method, target, nil)
	return &req{API: &API{Options: Options{MaxBody: 3 << 20}}, w: httptest.NewRecorder(), r: r, ctx: r.Context(), info: requestinfo.Parse(r),
		kind: testKind(), warn: &warnings{header: http.Header{}}, name: "x", ns: "ns"}
}

func configMapDecoder(empty func() resource.Object) *decoder {
	return &decoder{gvk: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, empty: empty}
}

func TestDecodeRefusals(t *testing.T) {
	d := configMapDecoder(func() resource.Object { return &corev1.ConfigMap{} })
	for body, want := range map[string]string{
		`{"a":`:                             `the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: unexpected end of JSON input ({"a":)`,
		`hello`:                             `the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: invalid character 'h' looking for beginning of value (68656c6c6f)`,
		`{"metadata":{"name":5}}`:           `ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field ObjectMeta.metadata.name of type string`,
		`{"kind":"Nope","apiVersion":"v1"}`: `Nope in version "v1" cannot be handled as a ConfigMap: no kind "Nope" is registered for version "v1" in scheme "pkg/runtime/scheme.go:111"`,
		`{"zzz":1}`:                         `ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: unknown field "zzz"`,
	} {
		_, _, err := d.decode([]byte(body), mediaJSON, metav1.FieldValidationStrict)
		if err == nil {
			t.Errorf("%s: accepted", body)
			continue
		}
		if got := status.Of(err); got.Message != want || got.Code != 400 {
			t.Errorf("%s:\n got %d %s\nwant 400 %s", body, got.Code, got.Message, want)
		}
	}
}

func TestBodiesAgree(t *testing.T) {
	want := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"a": "<b>"}},
		Data: map[string]string{"k": "v"}}
	f := testKind().NewCachedObject(want)
	d := configMapDecoder(func() resource.Object { return &corev1.ConfigMap{} })
	for _, media := range []string{mediaJSON, mediaProtobuf} {
		b, err := whole(f, 0, media)
		if err != nil {
			t.Fatal(err)
		}
		got, strict, err := d.decode(b, media, metav1.FieldValidationStrict)
		if err != nil || len(strict) > 0 {
			t.Fatalf("%s: %v %v", media, err, strict)
		}
		if diff := cmp.Diff(resource.Object(want), got); diff != "" {
			t.Errorf("%s: %s", media, diff)
		}
	}
	// the spliced envelope is what the library's own encoder makes
	raw, err := want.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, Raw: raw}
	lib, err := u.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(append([]byte(protobufMagic), lib...), envelope("v1", "ConfigMap", raw)); diff != "" {
		t.Errorf("envelope: %s", diff)
	}
}

func TestNegotiate(t *testing.T) {
	for header, want := range map[string]string{
		"":                 mediaJSON,
		"*/*":              mediaJSON,
		"application/yaml": mediaYAML,
		"application/vnd.kubernetes.protobuf,application/json":          mediaProtobuf,
		"application/json;q=0.1,application/yaml;q=0.9":                 mediaYAML,
		"application/json;as=Table;v=v1;g=meta.k8s.io,application/json": mediaJSON + " Table",
		"application/json;as=Nope;v=v1;g=x,application/json":            mediaJSON,
	} {
		q := testRequest("GET", "/api/v1/namespaces/ns/configmaps/x")
		q.r.Header.Set("Accept", header)
		if err := q.negotiate(); err != nil {
			t.Errorf("%q: %v", header, err)
			continue
		}
		got := q.accept.media
		if q.accept.target != nil {
			got += " " + q.accept.target.Kind
		}
		if got != want {
			t.Errorf("%q: got %s, want %s", header, got, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"x"},"data":{"a":"b"}}`), uint8(0))
	f.Add([]byte("kind: ConfigMap\nmetadata: {name: a}\n"), uint8(1))
	f.Add([]byte("k8s\x00\x0a\x00\x12\x00"), uint8(2))
	f.Add([]byte(`{"kind":"ConfigMap","metadata":5}`), uint8(0))
	f.Add([]byte(`null`), uint8(1))
	f.Add([]byte("\xd9\xd9\xf7\xa2\x44kind\x49ConfigMap\x4aapiVersion\x42v1"), uint8(3))
	f.Add([]byte("\xd9\xd9\xf7\xa1\x48metadata\xa1\x44name\x05"), uint8(3))
	f.Fuzz(func(t *testing.T, body []byte, how uint8) {
		media := []string{mediaJSON, mediaYAML, mediaProtobuf, mediaCBOR}[how%4]
		if err := decodeDeleteOptions(body, media, &metav1.DeleteOptions{}); err != nil && status.Of(err).Code != 400 {
			t.Fatalf("%v is no bad request", err)
		}
		for _, empty := range []func() resource.Object{
			func() resource.Object { return &corev1.ConfigMap{} },
			func() resource.Object { return &unstructured.Unstructured{Object: map[string]any{}} },
		} {
			d := configMapDecoder(empty)
			for _, v := range []string{metav1.FieldValidationStrict, metav1.FieldValidationWarn, metav1.FieldValidationIgnore} {
				obj, _, err := d.decode(body, media, v)
				if err == nil && obj == nil {
					t.Fatal("neither object nor error")
				}
				if err != nil && status.Of(err).Code != 400 && status.Of(err).Code != 422 {
					t.Fatalf("%v is no bad request", err)
				}
			}
		}
	})
}

func FuzzPatch(f *testing.F) {
	f.Add([]byte(`[{"op":"add","path":"/data","value":{"a":"b"}}]`), uint8(0))
	f.Add([]byte(`{"data":{"a":null}}`), uint8(1))
	f.Add([]byte(`{"metadata":{"$patch":"replace"},"data":{"$retainKeys":["a"]}}`), uint8(2))
	f.Fuzz(func(t *testing.T, body []byte, how uint8) {
		q := testRequest("PATCH", "/api/v1/namespaces/ns/configmaps/x")
		p := &patching{req: q, bytes: body, opts: &metav1.PatchOptions{}, validation: metav1.FieldValidationWarn, toHub: q.toHub,
			kind: []types.PatchType{types.JSONPatchType, types.MergePatchType, types.StrategicMergePatchType}[how%3],
			dec:  configMapDecoder(func() resource.Object { return &corev1.ConfigMap{} })}
		old := q.kind.NewCachedObject(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Data: map[string]string{"k": "v"}})
		obj, err := p.apply(old)
		if err == nil && obj == nil {
			t.Fatal("neither object nor error")
		}
		if old.Hub.(*corev1.ConfigMap).Data["k"] != "v" {
			t.Fatal("a patch changed the shared object")
		}
	})
}

func FuzzQuery(f *testing.F) {
	for _, s := range []string{"labelSelector=a%3Db,c+in+(d)", "fieldSelector=metadata.name%3Dx", "limit=1&continue=zzz",
		"watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", "resourceVersion=abc", "dryRun=All&fieldManager=a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, query string) {
		q := testRequest("GET", "/api/v1/namespaces/ns/configmaps")
		q.r.URL.RawQuery, q.name = query, ""
		if s, err := q.listOptions(); err == nil && s == nil {
			t.Fatal("neither options nor error")
		} else if err != nil && status.Of(err).Code >= 500 {
			t.Fatalf("%q: %v", query, err)
		}
		for _, read := range []func() error{
			func() error { _, err := q.createOptions(); return err },
			func() error { _, err := q.updateOptions(); return err },
			func() error { _, err := q.deleteOptions(); return err },
		} {
			if err := read(); err != nil && status.Of(err).Code >= 500 {
				t.Fatalf("%q: %v", query, err)
			}
		}
	})
}

func FuzzAccept(f *testing.F) {
	f.Add("application/json;as=Table;v=v1;g=meta.k8s.io;q=0.5, */*", "application/yaml; charset=utf-8")
	f.Fuzz(func(t *testing.T, accept, content string) {
		q := testRequest("GET", "/api/v1/namespaces/ns/configmaps")
		q.r.Header["Accept"], q.r.Header["Content-Type"] = []string{accept}, []string{content}
		err := q.negotiate()
		if err == nil {
			err = q.negotiateStream()
		}
		if err != nil && status.Of(err).Code != http.StatusNotAcceptable {
			t.Fatalf("%q: %v", accept, err)
		}
		if _, err := q.inputMedia(); err != nil && status.Of(err).Code != http.StatusUnsupportedMediaType {
			t.Fatalf("%q: %v", content, err)
		}
	})
}

func TestListSplices(t *testing.T) {
	k := testKind()
	f := k.NewCachedObject(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	b, err := f.Bytes(0, watchcache.JSON)
	if err != nil {
		t.Fatal(err)
	}
	var item map[string]any
	if err := json.Unmarshal(b, &item); err != nil || item["kind"] != nil {
		t.Errorf("bare form %s, error %v", b, err)
	}
	w, err := whole(f, 0, mediaJSON)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(w), `{"kind":"ConfigMap","apiVersion":"v1","metadata":`) {
		t.Errorf("whole form %s", w)
	}
}

// TestReadAll checks that a body is read whole up to the limit, whatever length was announced, and that one that was cut is an error.
func TestReadAll(t *testing.T) {
	text := strings.Repeat("0123456789", 10)
	for _, announced := range []int64{-1, 0, 1, 99, 100, 101, maxAhead, maxAhead + 1} {
		for _, limit := range []int64{50, 100, 101, 1 << 20} {
			want := text[:min(limit, 100)]
			got, err := readAll(iotest.HalfReader(strings.NewReader(text)), announced, limit)
			if err != nil || string(got) != want {
				t.Errorf("%d announced, at most %d: got %d bytes, %v", announced, limit, len(got), err)
			}
		}
		cut := io.MultiReader(strings.NewReader(text[:60]), iotest.ErrReader(io.ErrUnexpectedEOF))
		if got, err := readAll(cut, announced, 1<<20); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d announced, 60 came: got %d bytes, %v", announced, len(got), err)
		}
	}
}

// TestAnswersAreTheKeptEncoding checks that an answer as JSON has the same bytes the first time, when it is not kept, as later.
func TestAnswersAreTheKeptEncoding(t *testing.T) {
	k := testKind()
	for name, cm := range map[string]*corev1.ConfigMap{
		"empty": {}, "text": {ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"k": "<a & b>\u2028\n\"x\""}},
	} {
		f := k.NewCachedObject(cm)
		first, err := whole(f, 0, mediaJSON)
		if err != nil {
			t.Fatal(err)
		}
		second, err := whole(f, 0, mediaJSON)
		if err != nil {
			t.Fatal(err)
		}
		bare, err := json.Marshal(cm)
		if err != nil {
			t.Fatal(err)
		}
		want := `{"kind":"ConfigMap","apiVersion":"v1",` + string(bare[1:]) + "\n"
		if string(first) != want || string(second) != want {
			t.Errorf("%s:\ngot  %sthen %swant %s", name, first, second, want)
		}
	}
}
