// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"math/rand"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kindstest"
	"github.com/mortise-dev/mortise/resource"
)

// strict tells empty from absent, and times by what they show in each form.
var strict = cmp.Options{
	cmp.Comparer(func(a, b quantity.Quantity) bool { return a.Format == b.Format && a.Cmp(b) == 0 }),
	cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) && a.Location() == b.Location() }),
	cmp.Comparer(func(a, b metav1.FieldsV1) bool { return a.GetRawString() == b.GetRawString() }),
}

// TestReadBack compares objects that are read back with ones that are decoded.
func TestReadBack(t *testing.T) {
	done := 0
	for _, d := range All(Options{}) {
		codec, ok := d.Codec.(resource.ReadBacker)
		if d.Create != nil || !ok {
			continue
		}
		t.Run(d.GroupResource().String(), func(t *testing.T) {
			for seed := range int64(randomObjects) {
				obj := d.Hub().New()
				r := rand.New(rand.NewSource(seed))
				kindstest.Fill(obj, r)
				empty(reflect.ValueOf(obj).Elem(), r)
				obj.GetObjectKind().SetGroupVersionKind(d.GroupVersionKind(d.Storage))
				data, err := d.Codec.Encode(obj)
				if err != nil {
					t.Fatal(err)
				}
				want, err := d.Codec.Decode(data)
				if err != nil {
					t.Fatal(err)
				}
				if !codec.ReadBack(obj) {
					continue
				}
				done++
				if d := cmp.Diff(want, obj, strict); d != "" {
					t.Fatalf("of seed %d: %s", seed, d)
				}
			}
		})
	}
	if done < 100 {
		t.Errorf("%d objects were read back", done)
	}
}

// empty makes some of the slices and maps that are nil empty, and gives some times fractions and zones.
func empty(v reflect.Value, r *rand.Rand) {
	if at, ok := v.Addr().Interface().(*metav1.Time); ok {
		if !at.IsZero() && r.Intn(2) == 0 {
			at.Time = at.UTC().Add(time.Duration(r.Intn(1e9)))
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			empty(v.Elem(), r)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				empty(v.Field(i), r)
			}
		}
	case reflect.Slice:
		if v.IsNil() && r.Intn(2) == 0 {
			v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		}
		for i := range v.Len() {
			empty(v.Index(i), r)
		}
	case reflect.Map:
		if v.IsNil() && r.Intn(2) == 0 {
			v.Set(reflect.MakeMap(v.Type()))
		}
	}
}

// TestReadBackOfUsualObjects shows that usual objects need no decoding.
func TestReadBackOfUsualObjects(t *testing.T) {
	meta := metav1.ObjectMeta{Name: "a", Namespace: "b", Labels: map[string]string{"a": "b"}, CreationTimestamp: metav1.Now(),
		ManagedFields: []metav1.ManagedFieldsEntry{{
			Manager: "m", Time: &metav1.Time{Time: time.Now()}, FieldsV1: metav1.NewFieldsV1(`{"f:data":{}}`),
		}}}
	for resourceName, obj := range map[string]resource.Object{
		"configmaps": &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"k": "v"}},
		"secrets":    &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"k": []byte("v")}},
		"pods": &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{NodeSelector: map[string]string{}, Containers: []corev1.Container{{
			Name: "c", Image: "i", Ports: []corev1.ContainerPort{{ContainerPort: 1}},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": quantity.MustParse("1000m")}},
		}}}},
	} {
		for _, d := range All(Options{}) {
			if d.Group == "" && d.Resource == resourceName && !d.Codec.(resource.ReadBacker).ReadBack(obj) {
				t.Errorf("%s: must be decoded", resourceName)
			}
		}
	}
}
