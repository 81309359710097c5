// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	kjson "sigs.k8s.io/json"

	"github.com/mortise-dev/mortise/internal/kinds"
	"github.com/mortise-dev/mortise/internal/kinds/kindstest"
)

// checkTyped compares what is decoded with what sigs.k8s.io/json decodes, and reports whether it was.
func checkTyped(t *testing.T, text []byte, fresh func() any) bool {
	t.Helper()
	got := fresh()
	if !decodeTyped(text, got) {
		return false
	}
	want := fresh()
	if strict, err := kjson.UnmarshalStrict(text, want); err != nil || len(strict) > 0 {
		t.Fatalf("%q: sigs.k8s.io/json has errors %v %v", text, err, strict)
	}
	if !reflect.DeepEqual(want, got) {
		t.Fatalf("%q: %s", text, cmp.Diff(want, got))
	}
	return true
}

// TestDecodeTyped decodes random objects of every kind.
func TestDecodeTyped(t *testing.T) {
	done, all := 0, 0
	for _, d := range kinds.All(kinds.Options{}) {
		for i := range d.Versions {
			v := &d.Versions[i]
			for seed := range int64(4) {
				obj := v.New()
				kindstest.Fill(obj, rand.NewSource(seed))
				obj.GetObjectKind().SetGroupVersionKind(d.GroupVersionKind(v.Name))
				text, err := json.Marshal(obj)
				if err != nil {
					t.Fatal(err)
				}
				var indented bytes.Buffer
				if err := json.Indent(&indented, text, " ", "\t"); err != nil {
					t.Fatal(err)
				}
				for _, text := range [][]byte{text, indented.Bytes()} {
					if all++; checkTyped(t, text, func() any { return v.New() }) {
						done++
					}
				}
			}
		}
	}
	t.Logf("%d of %d objects were decoded", done, all)
	if done < all*9/10 {
		t.Errorf("%d of %d objects were decoded", done, all)
	}
}

func FuzzDecodeTyped(f *testing.F) {
	for _, text := range []string{
		`{"kind":"Deployment","metadata":{"name":"n","labels":{"a":"b","a":"c"},"creationTimestamp":null}}`,
		` {"spec":{"replicas":3,"template":{"spec":{"containers":[{"name":"c","ports":[{"containerPort":80}],"env":[]}]}}}} `,
		`{"spec":{"replicas":03,"selector":{"matchLabels":{}}}}`, `{"spec":{"paused":true,"minReadySeconds":-1,"replicas":1.0}}`,
		`{"spec":{"strategy":{"rollingUpdate":{"maxSurge":"25%","maxUnavailable":1}}}}`, `{"metadata":{"finalizers":[null,"a\u0041\ud800"]}}`,
		`{"spec":{"template":{"spec":{"containers":[{"resources":{"limits":{"cpu":"1","cpu":2}}}]}}}}`,
		`{"metadata":{"Name":"n"}}`, `{"spec":null}`,
		`{"metadata":{"managedFields":[{"fieldsV1":{"f:data":{".":{}}},"time":"2026-11-28T00:00:00Z"}]}} x`, "{\"metadata\":{\"name\":\"\xff\"}}",
		`{"metadata":{"creationTimestamp":"\`, `{"metadata":{"managedFields":[{"fieldsV1":{"\`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		checkTyped(t, text, func() any { return &appsv1.Deployment{} })
		checkTyped(t, text, func() any { return &corev1.Secret{} })
	})
}

func BenchmarkDecodeTyped(b *testing.B) {
	text := []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"n","labels":{"app":"web","pod-template-hash":"5d59d67564","tier":"front"},` +
		`"annotations":{"example.com/checksum":"8d969eef6ecad3c29a3a629280e686cf0c3f5d5a86aff3ca12020c923adc6c92"}},` +
		`"spec":{"automountServiceAccountToken":false,"containers":[{"name":"web","image":"registry.example.com/web:v1.2.3",` +
		`"ports":[{"containerPort":8080,"name":"http"}],` +
		`"env":[{"name":"POD_NAME","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}},{"name":"LEVEL","value":"info"}],` +
		`"resources":{"requests":{"cpu":"10m","memory":"16Mi"}}}]}}`)
	b.Run("typed", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if !decodeTyped(text, &corev1.Pod{}) {
				b.Fatal("declined")
			}
		}
	})
	b.Run("sigs.k8s.io", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := kjson.UnmarshalStrict(text, &corev1.Pod{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// TestDecodeManyFields declines fields that a struct has beyond those that the decoder counts.
func TestDecodeManyFields(t *testing.T) {
	var fields []reflect.StructField
	for i := range 200 {
		fields = append(fields, reflect.StructField{Name: fmt.Sprint("F", i), Type: reflect.TypeFor[int]()})
	}
	many := reflect.StructOf(fields)
	done := 0
	for i := range fields {
		if checkTyped(t, fmt.Appendf(nil, `{"F%d":1}`, i), func() any { return reflect.New(many).Interface() }) {
			done++
		}
	}
	if done != 128 {
		t.Errorf("%d fields are decoded", done)
	}
}
