// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package merge_test

import (
	"encoding/json"
	"math/rand"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"

	"github.com/mortise-dev/mortise/internal/apiserver/merge"
	"github.com/mortise-dev/mortise/internal/kinds"
	"github.com/mortise-dev/mortise/internal/kinds/kindstest"
	"github.com/mortise-dev/mortise/resource"
)

// check lays a patch over an object, and compares it with what is decoded from the merged texts. It reports whether the overlay was done.
func check(t *testing.T, obj resource.Object, fresh func() resource.Object, patch []byte) bool {
	t.Helper()
	var members map[string]any
	if strict, err := kjson.UnmarshalStrict(patch, &members); err != nil || len(strict) > 0 || members == nil {
		return false
	}
	got := obj.DeepCopyObject().(resource.Object)
	if !merge.Patch(got, members) {
		return false
	}
	text, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	merged, err := merge.JSON(text, patch)
	if err != nil {
		t.Fatal(err)
	}
	want := fresh()
	if strict, err := kjson.UnmarshalStrict(merged, want); err != nil || len(strict) > 0 {
		t.Fatalf("patch %s: the usual way has errors %v %v", patch, err, strict)
	}
	if !apiequality.Semantic.DeepEqual(want, got) {
		t.Fatalf("patch %s: %s", patch, cmp.Diff(want, got))
	}
	a, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if string(a) != string(b) {
		t.Fatalf("patch %s: %s", patch, cmp.Diff(string(a), string(b)))
	}
	return true
}

// TestPatch patches random objects of every kind.
func TestPatch(t *testing.T) {
	done, all := 0, 0
	for _, d := range kinds.All(kinds.Options{}) {
		for i := range d.Versions {
			v := &d.Versions[i]
			for seed := range int64(3) {
				random := rand.New(rand.NewSource(seed))
				make := func(seed int64) resource.Object {
					obj := v.New()
					kindstest.Fill(obj, rand.NewSource(seed))
					obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
					obj.SetManagedFields(nil)
					text, err := json.Marshal(obj) // as an object that was stored
					if err != nil {
						t.Fatal(err)
					}
					obj = v.New()
					if err := kjson.UnmarshalCaseSensitivePreserveInts(text, obj); err != nil {
						t.Fatal(err)
					}
					return obj
				}
				other, err := json.Marshal(make(seed + 100))
				if err != nil {
					t.Fatal(err)
				}
				var members map[string]any
				if err := kjson.UnmarshalCaseSensitivePreserveInts(other, &members); err != nil {
					t.Fatal(err)
				}
				for range 4 {
					patch, err := json.Marshal(some(members, random, 0.8))
					if err != nil {
						t.Fatal(err)
					}
					if all++; check(t, make(seed), v.New, patch) {
						done++
					}
				}
			}
		}
	}
	t.Logf("%d of %d overlays were done", done, all)
	if done*4 < all {
		t.Errorf("%d of %d overlays were done", done, all)
	}
}

// some is a part of a value's members, of which some are null.
func some(v any, random *rand.Rand, out float64) any {
	members, ok := v.(map[string]any)
	if !ok {
		return v
	}
	left := map[string]any{}
	for k, m := range members {
		switch n := random.Float64(); {
		case n < out:
		case n < out+0.03:
			left[k] = nil
		default:
			left[k] = some(m, random, out/2)
		}
	}
	return left
}

// FuzzPatch patches a pod.
func FuzzPatch(f *testing.F) {
	for _, patch := range []string{
		`{"metadata":{"labels":{"a":null,"b":"c"},"annotations":{}}}`, `{"spec":{"containers":[{"name":"x","resources":{"limits":{"cpu":1}}}]}}`,
		`{"spec":{"securityContext":{"runAsUser":5},"nodeSelector":null,"tolerations":[{"tolerationSeconds":null}]}}`,
		`{"spec":{"volumes":[{"name":"v","emptyDir":{"sizeLimit":"1e3"}}],"overhead":{"cpu":null,"memory":"1000m"}}}`,
		`{"kind":"Pod"}`, `{"metadata":{"creationTimestamp":null,"deletionGracePeriodSeconds":3}}`, `{"spec":{"priority":2147483648}}`,
	} {
		f.Add([]byte(patch))
	}
	pod := func() *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"a": "b"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}, NodeSelector: map[string]string{"x": "y"}}}
	}
	f.Fuzz(func(t *testing.T, patch []byte) {
		check(t, pod(), func() resource.Object { return &corev1.Pod{} }, patch)
	})
}
