// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"bytes"
	"hash/maphash"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/resource"
)

const (
	fieldSetSlots = 1 << 10
	largeFieldSet = 4 << 10 // bytes of one that few objects have
)

// fieldSets has the field sets of managed fields that were decoded lately: all objects that a controller has made of one template have the
// same, which are a quarter of a decoded pod. It is bounded: a set takes the place of another with the same slot. It is safe for concurrent
// use.
type fieldSets struct {
	seed  maphash.Seed
	slots [fieldSetSlots]atomic.Pointer[metav1.FieldsV1]
}

var decodedFieldSets = &fieldSets{seed: maphash.MakeSeed()}

// same returns a field set that was seen before and equals f, or f. No one may change f from now on.
func (s *fieldSets) same(f *metav1.FieldsV1) *metav1.FieldsV1 {
	raw := f.GetRawBytes()
	if len(raw) == 0 || len(raw) > largeFieldSet {
		return f
	}
	slot := &s.slots[maphash.Bytes(s.seed, raw)%fieldSetSlots]
	if known := slot.Load(); known != nil && bytes.Equal(known.GetRawBytes(), raw) {
		return known
	}
	slot.Store(f)
	return f
}

// share has a typed object share its field sets with others. The object itself is not shared yet.
func (s *fieldSets) share(hub resource.Object) {
	entries := hub.GetManagedFields()
	for i := range entries {
		if entries[i].FieldsV1 != nil {
			entries[i].FieldsV1 = s.same(entries[i].FieldsV1)
		}
	}
}
