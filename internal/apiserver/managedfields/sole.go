// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"cmp"
	"encoding/binary"
	"reflect"
	"time"
	"unicode/utf8"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"github.com/mortise-dev/mortise/resource"
)

// A write by the only manager of an object, which owns all fields that the object has after it, changes no field set: what the write
// adds and changes is among these fields, and what it removes is not. Leases, objects with a leader's name and most objects of a
// controller are written so, again and again. Then the entry stays, with the time of the write, and nothing is compared.
//
// Which fields an object has is known of its likeness, as for new objects. They are computed when a likeness is met the second time.

// updateSole does an update if it is such a write, and reports whether it was.
func (m *Manager) updateSole(f *managedfields.FieldManager, c *converter, live, obj resource.Object, manager string) (bool, error) {
	gv := schema.GroupVersion{Group: c.d.Group, Version: c.v.Name}
	entry := soleEntry(live, obj)
	if entry == nil || entry.Manager != cmp.Or(manager, "unknown") || !utf8.ValidString(manager) || entry.APIVersion != gv.String() ||
		entry.Operation != metav1.ManagedFieldsOperationUpdate || entry.Subresource != "" || resets(c.d, "") != nil {
		return false, nil
	}
	n, err := m.creation(c)
	if err != nil || n == nil {
		return false, err
	}
	fields, err := m.fieldsOf(f, c, n, obj)
	if err != nil || fields == "" || fields != entry.FieldsV1.GetRawString() {
		return false, err
	}
	after := *entry
	if !sameContents(live, obj) {
		after.Time = &metav1.Time{Time: time.Now().UTC()}
	}
	obj.SetManagedFields([]metav1.ManagedFieldsEntry{after})
	return true, nil
}

// soleEntry returns the only entry of live, unless obj brings others; else nil. An empty list that is not nil is a request to reset them.
func soleEntry(live, obj resource.Object) *metav1.ManagedFieldsEntry {
	was, is := live.GetManagedFields(), obj.GetManagedFields()
	if len(was) != 1 || was[0].FieldsV1 == nil || is != nil && (len(is) != 1 || !sameEntry(is[0], was[0])) {
		return nil
	}
	return &was[0]
}

// sameEntry reports whether two entries are the same to a client, which knows their times in seconds.
func sameEntry(a, b metav1.ManagedFieldsEntry) bool {
	if a.Time != nil && b.Time != nil && a.Time.Unix() == b.Time.Unix() {
		a.Time = b.Time
	}
	return apiequality.Semantic.DeepEqual(a, b)
}

// fieldsOf returns the set of all fields of an object; empty: it is not known yet.
func (m *Manager) fieldsOf(f *managedfields.FieldManager, c *converter, n *creation, obj resource.Object) (string, error) {
	var written runtime.Object = obj
	if c.v.FromHub != nil {
		var err error
		if written, err = c.to(obj, schema.GroupVersion{Group: c.d.Group, Version: c.v.Name}); err != nil {
			return "", err
		}
	}
	room := likenesses.Get().(*[]byte)
	defer likenesses.Put(room)
	key, judged := n.like(binary.AppendUvarint((*room)[:0], n.number), reflect.ValueOf(written).Elem())
	*room = key[:0]
	if !judged {
		return "", nil
	}
	if fields := m.alike.get(key); fields != "" {
		return fields, nil
	}
	const once = "1"
	if m.met.get(key) == "" {
		m.met.put(key, once)
		return "", nil
	}
	whole := obj.DeepCopyObject().(resource.Object)
	whole.SetManagedFields(nil)
	if _, err := f.Update(n.empty, whole, "all"); err != nil {
		return "", err
	}
	e := whole.GetManagedFields()
	if len(e) != 1 || e[0].FieldsV1 == nil {
		return "", nil
	}
	fields := e[0].FieldsV1.GetRawString()
	m.alike.put(key, fields)
	return fields, nil
}

// sameContents reports whether two objects differ at most in what no manager owns.
func sameContents(live, obj resource.Object) bool {
	var own metav1.ObjectMeta
	copyUnowned(&own, obj)
	copyUnowned(obj, live)
	same := apiequality.Semantic.DeepEqual(live, obj)
	copyUnowned(obj, &own)
	return same
}

// copyUnowned copies the metadata that no manager owns, which the server alone writes.
func copyUnowned(to, from metav1.Object) {
	to.SetResourceVersion(from.GetResourceVersion())
	to.SetUID(from.GetUID())
	to.SetGeneration(from.GetGeneration())
	to.SetCreationTimestamp(from.GetCreationTimestamp())
	to.SetSelfLink(from.GetSelfLink())
	to.SetManagedFields(from.GetManagedFields())
}
