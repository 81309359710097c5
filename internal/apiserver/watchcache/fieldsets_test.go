// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"hash/maphash"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/store"
)

// TestFieldSetsAreShared checks that objects share equal field sets, no others, and none that are empty or large.
func TestFieldSetsAreShared(t *testing.T) {
	s := &fieldSets{seed: maphash.MakeSeed()}
	decoded := func(sets ...string) []metav1.ManagedFieldsEntry {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "none"}}}}
		for _, set := range sets {
			cm.ManagedFields = append(cm.ManagedFields, metav1.ManagedFieldsEntry{FieldsV1: metav1.NewFieldsV1(set)})
		}
		s.share(cm)
		return cm.ManagedFields[1:]
	}
	large := strings.Repeat("x", largeFieldSet+1)
	all := []string{`{"f:data":{}}`, `{"f:metadata":{}}`, "", large}
	a, b := decoded(all...), decoded(all...)
	for i, want := range []bool{true, true, false, false} {
		if got := a[i].FieldsV1 == b[i].FieldsV1; got != want {
			t.Errorf("set %d: shared %v, want %v", i, got, want)
		}
		if got := b[i].FieldsV1.GetRawString(); got != all[i] {
			t.Errorf("set %d is %q", i, got)
		}
	}
}

// TestDecodedObjectsShareFieldSets checks this for stored objects.
func TestDecodedObjectsShareFieldSets(t *testing.T) {
	f := newFixture(t, 1<<20)
	sets := map[*metav1.FieldsV1]bool{}
	for _, name := range []string{"a", "b"} {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m", FieldsV1: metav1.NewFieldsV1(`{"f:data":{"f:k":{}}}`)}}}}
		value, err := f.Codec.Encode(cm)
		if err != nil {
			t.Fatal(err)
		}
		obj, err := f.Decode(&store.Record{Key: f.Key("ns", name), Value: value, Revision: 1})
		if err != nil {
			t.Fatal(err)
		}
		sets[obj.GetManagedFields()[0].FieldsV1] = true
	}
	if len(sets) != 1 {
		t.Errorf("two objects have %d field sets", len(sets))
	}
}
