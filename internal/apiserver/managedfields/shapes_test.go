// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoapply "k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
)

// TestShapesAreClientGos compares every type with what client-go parses.
func TestShapesAreClientGos(t *testing.T) {
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
	value, err := clientgoapply.NewTypeConverter(scheme.Scheme).ObjectToTyped(pod)
	if err != nil {
		t.Fatal(err)
	}
	got, err := readShapes(shapes)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]*schema.TypeDef{}
	for i := range value.Schema().Types {
		want[value.Schema().Types[i].Name] = &value.Schema().Types[i]
	}
	if len(want) < 500 || len(want) != len(got) {
		t.Fatalf("%d types, client-go has %d; run go generate", len(got), len(want))
	}
	for i := range got {
		if d := cmp.Diff(want[got[i].Name], &got[i], cmpopts.IgnoreUnexported(schema.Map{})); d != "" {
			t.Errorf("%s is not client-go's; run go generate: %s", got[i].Name, d)
		}
	}
}

func BenchmarkReadShapes(b *testing.B) {
	for b.Loop() {
		if _, err := readShapes(shapes); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzReadShapes(f *testing.F) {
	f.Add([]byte("not gzip"))
	f.Add(shapes[:1000])
	f.Fuzz(func(t *testing.T, data []byte) {
		if types, err := readShapes(data); err == nil && types == nil {
			t.Error("no types and no error")
		}
	})
}
