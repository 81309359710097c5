// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/mortise-dev/mortise/internal/apiserver/segments"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
)

// TestCBORSplices decodes what is spliced with upstream's decoder: objects, and events around them.
func TestCBORSplices(t *testing.T) {
	k := testKind()
	for _, size := range []int{0, 1, 30, 300, 70000} {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Data: map[string]string{"k": strings.Repeat("x", size)}}
		b, err := whole(k.NewCachedObject(cm), 0, mediaCBOR)
		if err != nil {
			t.Fatal(err)
		}
		obj, gvk, err := cbor.NewSerializer(scheme.Scheme, scheme.Scheme, cbor.Strict(true)).Decode(b, nil, nil)
		if err != nil || gvk.Kind != "ConfigMap" || gvk.Version != "v1" {
			t.Fatalf("%d bytes of data: %v, error %v", size, gvk, err)
		}
		got := obj.(*corev1.ConfigMap)
		got.TypeMeta = metav1.TypeMeta{}
		if diff := cmp.Diff(cm, got); diff != "" {
			t.Errorf("%d bytes of data: %s", size, diff)
		}
		var e metav1.WatchEvent
		if err := direct.Unmarshal(append(appendCBOREvent(nil, "ADDED"), b...), &e); err != nil || e.Type != "ADDED" ||
			!bytes.Equal(e.Object.Raw, b) {
			t.Errorf("event %s of %d bytes, error %v", e.Type, len(e.Object.Raw), err)
		}
	}
	many := map[string]any{}
	for i := range 300 {
		many[fmt.Sprint("key", i)] = int64(i)
	}
	for _, fields := range []map[string]any{{}, {"a": "b"}, many} {
		raw, err := direct.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		b, err := appendCBOR(nil, false, "v1", "K", raw)
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := direct.Unmarshal(b, &got); err != nil || got["kind"] != "K" || got["apiVersion"] != "v1" || len(got) != len(fields)+2 {
			t.Errorf("%d fields: got %d, error %v", len(fields), len(got), err)
		}
	}
	for _, raw := range []string{"", "\x80", "\xb9\x00", "\xbf\xff", "\x01"} {
		if b, err := appendCBOR(nil, false, "v1", "K", []byte(raw)); err == nil {
			t.Errorf("%q became %q", raw, b)
		}
	}
}

// TestDecodeCBOR tells what is made of bodies in CBOR.
func TestDecodeCBOR(t *testing.T) {
	typed := configMapDecoder(func() resource.Object { return &corev1.ConfigMap{} })
	free := configMapDecoder(func() resource.Object { return &unstructured.Unstructured{Object: map[string]any{}} })
	for _, c := range []struct {
		name       string
		d          *decoder
		body       map[string]any
		validation string
		want       string // of the error; "" none
		strict     int
	}{
		{"right", typed, map[string]any{"kind": "ConfigMap", "apiVersion": "v1", "data": map[string]any{"a": "b"}}, metav1.FieldValidationStrict,
			"", 0},
		{"no kind", typed, map[string]any{"data": map[string]any{"a": "b"}}, metav1.FieldValidationStrict, "", 0},
		{"unknown field", typed, map[string]any{"zzz": int64(1)}, metav1.FieldValidationWarn, "", 1},
		{"unknown field, strictly", typed, map[string]any{"zzz": int64(1)}, metav1.FieldValidationStrict, "strict decoding error", 0},
		{"unknown field, ignored", typed, map[string]any{"zzz": int64(1)}, metav1.FieldValidationIgnore, "", 0},
		{"other kind", typed, map[string]any{"kind": "Pod", "apiVersion": "v1"}, "",
			"converting (v1.Pod) to (core.ConfigMap): unknown conversion", 0},
		{"no such kind", typed, map[string]any{"kind": "Nope", "apiVersion": "v1"}, "", `no kind "Nope" is registered for version "v1"`, 0},
		{"no such version", typed, map[string]any{"kind": "ConfigMap", "apiVersion": "v2"}, "",
			`no kind "ConfigMap" is registered for version "v2"`, 0},
		{"wrong type", typed, map[string]any{"metadata": map[string]any{"name": int64(5)}}, "", "cannot be handled as a ConfigMap", 0},
		{"without a Go type", free, map[string]any{"kind": "ConfigMap", "apiVersion": "v1", "n": int64(1)}, "", "", 0},
		{"without a Go type or kind", free, map[string]any{"n": int64(1)}, "", "Object 'Kind' is missing", 0},
		{"without a Go type, of another kind", free, map[string]any{"kind": "Pod", "apiVersion": "v1"}, "", "must be ConfigMap", 0},
	} {
		body, err := encodeCBOR(c.body)
		if err != nil {
			t.Fatal(err)
		}
		obj, strict, err := c.d.decode(body, mediaCBOR, c.validation)
		switch {
		case c.want == "" && (err != nil || obj == nil || len(strict) != c.strict):
			t.Errorf("%s: object %v, %v, error %v", c.name, obj, strict, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
	twice := []byte("\xd9\xd9\xf7\xa2\x41a\x01\x41a\x02")
	if _, _, err := typed.decode(twice, mediaCBOR, metav1.FieldValidationIgnore); err == nil {
		t.Error("a map that has a key twice was read")
	}
}

// TestStoredGzip reads members that are not compressed, as a client does: one after the other.
func TestStoredGzip(t *testing.T) {
	var all, want []byte
	for _, size := range []int{0, 1, 100, zipEventsFrom - 1} {
		part := bytes.Repeat([]byte{byte(size)}, size)
		all, want = segments.Stored(part).AppendMember(all), append(want, part...)
	}
	z, err := gzip.NewReader(bytes.NewReader(all))
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(z)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, want %d, error %v", len(got), len(want), err)
	}
}

// FuzzCBORSplice adds a kind to any CBOR map without harm: what upstream's decoder reads, it still reads with two fields more.
func FuzzCBORSplice(f *testing.F) {
	f.Add([]byte("\xa0"))
	f.Add([]byte("\xa1\x41a\x01"))
	f.Add([]byte("\xb8\x01\x41a\x01"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var before, after map[string]any
		if direct.Unmarshal(raw, &before) != nil || before == nil {
			return
		}
		b, err := appendCBOR(nil, false, "v1", "K", raw)
		if err != nil {
			return // a map of unknown size, or one in a tag
		}
		if _, ok := before["kind"]; ok {
			return
		}
		if _, ok := before["apiVersion"]; ok {
			return
		}
		if err := direct.Unmarshal(b, &after); err != nil || len(after) != len(before)+2 {
			t.Fatalf("%x became %x: %v", raw, b, err)
		}
	})
}

// BenchmarkCBOR is an object's encoding in each medium.
func BenchmarkCBOR(b *testing.B) {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "n", Namespace: "ns", UID: "u"},
		Data: map[string]string{"k": strings.Repeat("x", 1000)}}
	for name, m := range map[string]watchcache.Media{"JSON": watchcache.JSON, "protobuf": watchcache.Protobuf, "CBOR": watchcache.CBOR} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := watchcache.EncodeBare(runtime.Object(cm), m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
