// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/mortise-dev/mortise/resource"
)

// A controller applies configurations with the same fields again and again, with other values. Of such a configuration it is known which
// fields it sets. If its manager set exactly these the last time, and no other manager owns one of them, it takes no field from anybody,
// and removes none: it is laid over the object, and its manager's entry stays but for its time. A new object has the one entry.
//
// What is not known, or is not as simple, is applied by field sets, and what is learned of it is cached: the fields of a configuration by
// what it has of keys and types, and which of two entries have no field in common.

// knownApply is the apply of one configuration.
type knownApply struct {
	m       *Manager
	c       *converter
	n       *creation
	live    resource.Object // nil: the object is new
	with    Configuration
	version string // apiVersion
	key     []byte // of the configuration's fields in the cache; nil: it is not simple
}

// knownApply prepares an apply.
func (m *Manager) knownApply(c *converter, subresource string, live resource.Object, with Configuration) (*knownApply, error) {
	a := &knownApply{m: m, c: c, live: live, with: with}
	if custom(c.d) || subresource != "" || !utf8.ValidString(with.Manager) || with.Manager == "" {
		return a, nil
	}
	n, err := m.creation(c)
	if err != nil || n == nil || n.apply == nil {
		return a, err
	}
	a.n, a.version = n, schema.GroupVersion{Group: c.d.Group, Version: c.v.Name}.String()
	u := with.Object
	if u.GetAPIVersion() != a.version || u.GetKind() != c.d.Kind || !simple(u.Object) || live != nil && synced(live.GetAnnotations()) {
		return a, nil
	}
	const applied = 'a'
	key, ok := appendShape(append(binary.AppendUvarint(make([]byte, 0, 128), n.number), applied), u.Object)
	if ok && len(key) <= alikeEach/2 {
		a.key = key
	}
	return a, nil
}

// simple reports whether a configuration has nothing but common metadata, and no status.
func simple(u map[string]any) bool {
	if _, ok := u["status"]; ok {
		return false
	}
	members, ok := u["metadata"].(map[string]any)
	if !ok {
		return false
	}
	for k, v := range members {
		switch k {
		case "name", "namespace", "labels":
		case "annotations":
			if all, ok := v.(map[string]any); !ok || all[corev1.LastAppliedConfigAnnotation] != nil {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// synced reports whether kubectl keeps an annotation of what it applied.
func synced(annotations map[string]string) bool {
	_, ok := annotations[corev1.LastAppliedConfigAnnotation]
	return ok
}

// appendShape appends what decides of a configuration which fields it sets and whether it fits a schema: keys, types, and all of what lists
// contain, whose elements are identified by some of it. It returns false for a value with a null.
func appendShape(b []byte, v any) ([]byte, bool) { return shapeOf(b, v, false) }

func shapeOf(b []byte, v any, listed bool) (_ []byte, ok bool) {
	switch v := v.(type) {
	case string:
		if b = append(b, 's'); listed {
			b = text(b, v)
		}
	case int64:
		if b = append(b, 'i'); listed {
			b = binary.AppendVarint(b, v)
		}
	case float64:
		return append(b, 'f'), !listed
	case bool:
		switch {
		case listed && v:
			b = append(b, 't')
		case listed:
			b = append(b, 'n')
		default:
			b = append(b, 'b')
		}
	case []any:
		b = binary.AppendUvarint(append(b, '['), uint64(len(v)))
		for _, e := range v {
			if b, ok = shapeOf(b, e, true); !ok {
				return b, false
			}
		}
	case map[string]any:
		b = binary.AppendUvarint(append(b, '{'), uint64(len(v)))
		var room [16]string
		keys := slices.AppendSeq(room[:0], maps.Keys(v))
		slices.Sort(keys)
		for _, k := range keys {
			if b, ok = shapeOf(text(b, k), v[k], listed); !ok {
				return b, false
			}
		}
	default:
		return b, false
	}
	return b, true
}

// apply returns the object after the apply; nil: it must be applied by field sets.
func (a *knownApply) apply() resource.Object {
	if a.key == nil {
		return nil
	}
	fields := a.m.alike.get(a.key)
	if fields == "" {
		return nil
	}
	if a.live == nil {
		return a.create(fields)
	}
	was := a.live.GetManagedFields()
	own := a.entry(was)
	if own < 0 || was[own].APIVersion != a.version || was[own].FieldsV1.GetRawString() != fields {
		return nil
	}
	for i := range was {
		if i != own && (was[i].APIVersion != a.version || was[i].FieldsV1 == nil ||
			a.m.alike.get(apart(a.n, fields, was[i].FieldsV1.GetRawString())) == "") {
			return nil
		}
	}
	obj := a.live.DeepCopyObject().(resource.Object)
	changed, ok := a.n.apply.Apply(obj, a.with.Object.Object, false)
	if !ok {
		return nil
	}
	if !changed && apiequality.Semantic.DeepEqual(obj, a.live) {
		return obj
	}
	entries := obj.GetManagedFields()
	entries[own].Time = &metav1.Time{Time: time.Now().UTC()}
	sortEntries(entries)
	return a.filled(obj)
}

// create returns the new object.
func (a *knownApply) create(fields string) resource.Object {
	if a.m.alike.get(alone(a.key)) == "" {
		return nil
	}
	obj := a.c.v.New()
	if _, ok := a.n.apply.Apply(obj, a.with.Object.Object, true); !ok {
		return nil
	}
	obj.SetManagedFields([]metav1.ManagedFieldsEntry{{
		Manager: a.with.Manager, Operation: metav1.ManagedFieldsOperationApply, APIVersion: a.version,
		Time: &metav1.Time{Time: time.Now().UTC()}, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
	}})
	return a.filled(obj)
}

// filled sets the defaults of a new object of the version, which is the hub's.
func (a *knownApply) filled(obj resource.Object) resource.Object {
	if a.c.v.Default != nil {
		a.c.v.Default(obj)
	}
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return obj
}

// entry returns the index of the manager's entry; -1: there is none.
func (a *knownApply) entry(entries []metav1.ManagedFieldsEntry) int {
	return slices.IndexFunc(entries, func(e metav1.ManagedFieldsEntry) bool {
		return e.Manager == a.with.Manager && e.Operation == metav1.ManagedFieldsOperationApply && e.Subresource == "" && e.FieldsV1 != nil
	})
}

// learn caches what was found out by field sets.
func (a *knownApply) learn(obj resource.Object) {
	if a.key == nil {
		return
	}
	entries := obj.GetManagedFields()
	own := a.entry(entries)
	if own < 0 {
		return
	}
	const yes = "1"
	fields := entries[own].FieldsV1.GetRawString()
	a.m.alike.put(a.key, fields)
	if a.live == nil && len(entries) == 1 {
		a.m.alike.put(alone(a.key), yes)
	}
	for i := range entries {
		e := &entries[i]
		if i == own || e.APIVersion != a.version || e.FieldsV1 == nil {
			continue
		}
		key := apart(a.n, fields, e.FieldsV1.GetRawString())
		if a.m.alike.get(key) == "" && disjoint(fields, e.FieldsV1.GetRawString()) {
			a.m.alike.put(key, yes)
		}
	}
}

// alone is the key of what is known of new objects of a configuration: that it is their only manager's.
func alone(key []byte) []byte { return append(key[:len(key):len(key)], 'c') }

// apart is the key of what is known of two entries: that they have no field in common.
func apart(n *creation, one, other string) []byte {
	const pair = 'p'
	return text(text(append(binary.AppendUvarint(make([]byte, 0, len(one)+len(other)+16), n.number), pair), one), other)
}

func disjoint(one, other string) bool {
	var a, b fieldpath.Set
	if a.FromJSON(strings.NewReader(one)) != nil || b.FromJSON(strings.NewReader(other)) != nil {
		return false
	}
	return a.Intersection(&b).Empty()
}

// sortEntries sorts entries as field managers do.
func sortEntries(entries []metav1.ManagedFieldsEntry) {
	second := func(e *metav1.ManagedFieldsEntry) int64 {
		if e.Time == nil {
			return 0
		}
		return e.Time.Unix()
	}
	slices.SortFunc(entries, func(p, q metav1.ManagedFieldsEntry) int {
		return cmp.Or(cmp.Compare(p.Operation, q.Operation), cmp.Compare(second(&p), second(&q)), cmp.Compare(p.Manager, q.Manager),
			cmp.Compare(p.APIVersion, q.APIVersion), cmp.Compare(p.Subresource, q.Subresource))
	})
}
