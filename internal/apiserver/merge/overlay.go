// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package merge

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
)

// An overlay lays decoded JSON over a Go object: a merge patch, or a configuration of server-side apply. The usual way is to encode the
// object, to merge texts or trees, and to decode the result, which costs several times as much as the members that change.
//
// An overlay is done whole or not at all. It is not done for what is rare or might be an error: unknown fields, numbers out of range,
// members of several forms. The caller then takes the usual way, which has upstream's results and errors. Tests compare the two.

// Plan is how decoded JSON is laid over objects of one Go type.
type Plan struct{ lay layer }

// patches are the plans of merge patches by type.
var patches sync.Map // of reflect.Type to *Plan

// Patch lays a merge patch over obj, a pointer to a struct that the caller owns, and reports whether it did. If not, obj is of no use any
// more. The values of patch are those of sigs.k8s.io/json. A patch of kind or apiVersion is not done.
func Patch(obj any, patch map[string]any) bool {
	v := reflect.ValueOf(obj)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return false
	}
	known, ok := patches.Load(v.Type())
	if !ok {
		p := &planner{made: map[planned]*layer{}}
		made := &Plan{p.fields(v.Type().Elem(), nil, false)}
		if p.texts {
			made.lay = never
		}
		known, _ = patches.LoadOrStore(v.Type(), made)
	}
	return known.(*Plan).lay(&laying{}, v.Elem(), patch)
}

// Applied returns the plan of configurations of a Go type, whose fields have the merge rules of a schema. It is nil for a type that is no
// struct.
func Applied(t reflect.Type, s *schema.Schema, ref schema.TypeRef) *Plan {
	atom, ok := s.Resolve(ref)
	if t.Kind() != reflect.Struct || !ok || atom.Map == nil {
		return nil
	}
	p := &planner{schema: s, made: map[planned]*layer{}}
	made := &Plan{p.fields(t, atom.Map, true)}
	if p.texts {
		return nil
	}
	return made
}

// Apply lays a configuration without nulls over obj, a pointer to a struct of the plan's type that the caller owns, and reports whether it
// did. If not, obj is of no use any more. Without create it does nothing that adds a map or struct to obj. The configuration's kind and
// apiVersion are not looked at. If changed is set, obj has a text or a number that it had not; if not, it may be changed too.
func (p *Plan) Apply(obj any, configuration map[string]any, create bool) (changed, ok bool) {
	l := &laying{applies: true, creates: create}
	ok = p.lay(l, reflect.ValueOf(obj).Elem(), configuration)
	return l.changed, ok
}

// laying is one overlay.
type laying struct {
	applies bool // a configuration, not a merge patch
	creates bool // see Apply
	listed  bool // in an element of a list, where null is no removal
	changed bool // a text or number is another one
}

// mayCreate reports whether a map or struct may be added.
func (l *laying) mayCreate() bool { return !l.applies || l.creates }

// layer lays a JSON value over a Go value. Nil removes what is there.
type layer func(l *laying, dst reflect.Value, v any) bool

// planner makes layers.
type planner struct {
	schema *schema.Schema // nil: of merge patches
	texts  bool           // there is a type that keeps JSON as it came, of which a merge sorts the members
	made   map[planned]*layer
}

// planned is a type with the name of its schema, which is empty where merge patches' rules hold.
type planned struct {
	t        reflect.Type
	name     string
	relation schema.ElementRelationship
}

// removable returns a layer for which nil removes what is there.
func removable(lay layer) layer {
	return func(l *laying, dst reflect.Value, v any) bool {
		if v == nil {
			dst.SetZero()
			return true
		}
		return lay(l, dst, v)
	}
}

// never lays nothing.
func never(_ *laying, _ reflect.Value, _ any) bool { return false }

// of returns the layer of a type with a schema; a nil schema: of merge patches, and of values that replace others whole.
func (p *planner) of(t reflect.Type, ref *schema.TypeRef) layer {
	key := planned{t: t}
	if ref != nil {
		if ref.NamedType == nil {
			return p.make(t, ref)
		}
		key.name = *ref.NamedType
		if ref.ElementRelationship != nil {
			key.relation = *ref.ElementRelationship
		}
	}
	if known := p.made[key]; known != nil {
		return func(l *laying, dst reflect.Value, v any) bool { return (*known)(l, dst, v) } // it may still be nil: the type contains itself
	}
	to := new(layer)
	p.made[key] = to
	*to = p.make(t, ref)
	return *to
}

var (
	unmarshaler = reflect.TypeFor[json.Unmarshaler]()
	// These decode themselves and keep no JSON, or such whose members are sorted always.
	withoutTexts = map[reflect.Type]bool{
		reflect.TypeFor[metav1.Time](): true, reflect.TypeFor[metav1.MicroTime](): true, reflect.TypeFor[metav1.Duration](): true,
		reflect.TypeFor[metav1.FieldsV1](): true, reflect.TypeFor[resource.Quantity](): true, reflect.TypeFor[intstr.IntOrString](): true,
	}
)

func (p *planner) make(t reflect.Type, ref *schema.TypeRef) layer {
	if t.Kind() == reflect.Pointer {
		return pointer(t, p.of(t.Elem(), ref))
	}
	var atom schema.Atom
	if ref != nil {
		var ok bool
		if atom, ok = p.schema.Resolve(*ref); !ok {
			return never
		}
	}
	whole := ref == nil
	switch kind := t.Kind(); {
	case reflect.PointerTo(t).Implements(unmarshaler):
		p.texts = p.texts || !withoutTexts[t]
		if whole || atom.Scalar != nil {
			return custom(t)
		}
	case kind == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		if whole || atom.Scalar != nil {
			return removable(octets)
		}
	case kind == reflect.Slice:
		return p.list(t, atom.List, whole)
	case kind == reflect.Map && t.Key().Kind() == reflect.String:
		return p.dictionary(t, atom.Map, whole)
	case kind == reflect.Struct:
		if whole || atom.Map != nil {
			return p.structure(t, atom.Map)
		}
	case whole || atom.Scalar != nil:
		return layScalar(kind)
	}
	return never
}

// pointer lays over what is pointed to, which is made if necessary.
func pointer(t reflect.Type, to layer) layer {
	container := t.Elem().Kind() == reflect.Struct && !t.Implements(unmarshaler)
	return removable(func(l *laying, dst reflect.Value, v any) bool {
		if container && !dst.IsNil() {
			return to(l, dst.Elem(), v)
		}
		if container && !l.mayCreate() {
			return false
		}
		made := reflect.New(t.Elem())
		if !dst.IsNil() {
			made.Elem().Set(dst.Elem())
		}
		if !to(l, made.Elem(), v) {
			return false
		}
		dst.Set(made)
		return true
	})
}

// custom lays scalars over a type that decodes itself.
func custom(t reflect.Type) layer {
	return removable(func(_ *laying, dst reflect.Value, v any) bool {
		switch v.(type) {
		case string, int64, bool:
		default: // of a number with a fraction or an exponent, the text counts
			return false
		}
		text, err := json.Marshal(v)
		if err != nil {
			return false
		}
		made := reflect.New(t)
		if err := made.Interface().(json.Unmarshaler).UnmarshalJSON(text); err != nil {
			return false
		}
		dst.Set(made.Elem())
		return true
	})
}

func octets(_ *laying, dst reflect.Value, v any) bool {
	text, ok := v.(string)
	if !ok {
		return false
	}
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return false
	}
	dst.SetBytes(b)
	return true
}

// list replaces a list. One whose elements are merged is laid only over none.
func (p *planner) list(t reflect.Type, list *schema.List, whole bool) layer {
	merged := false
	var of *schema.TypeRef
	switch {
	case whole:
	case list == nil:
		return never
	case list.ElementRelationship == schema.Associative:
		merged, of = true, &list.ElementType
	}
	each := p.of(t.Elem(), of)
	return removable(func(l *laying, dst reflect.Value, v any) bool {
		elements, ok := v.([]any)
		if !ok || merged && dst.Len() > 0 || merged && !l.mayCreate() {
			return false
		}
		made := reflect.MakeSlice(t, len(elements), len(elements))
		inside := &laying{applies: l.applies, creates: true, listed: true}
		for i, e := range elements {
			if e == nil || !each(inside, made.Index(i), e) {
				return false
			}
		}
		dst.Set(made)
		return true
	})
}

// dictionary merges a map, or replaces an atomic one.
func (p *planner) dictionary(t reflect.Type, m *schema.Map, whole bool) layer {
	atomic := false
	var of *schema.TypeRef
	switch {
	case whole:
	case m == nil || len(m.Fields) > 0:
		return never
	case m.ElementRelationship == schema.Atomic:
		atomic = true
	default:
		of = &m.ElementType
	}
	each := p.of(t.Elem(), of)
	return removable(func(l *laying, dst reflect.Value, v any) bool {
		members, ok := v.(map[string]any)
		if !ok {
			return false
		}
		if dst.IsNil() || atomic {
			if !atomic && !l.mayCreate() {
				return false
			}
			dst.Set(reflect.MakeMapWithSize(t, len(members)))
		}
		for k, member := range members {
			key := reflect.ValueOf(k).Convert(t.Key())
			if member == nil {
				if l.listed {
					return false
				}
				dst.SetMapIndex(key, reflect.Value{})
				continue
			}
			e := reflect.New(t.Elem()).Elem()
			if was := dst.MapIndex(key); was.IsValid() {
				e.Set(was)
			}
			if !each(l, e, member) {
				return false
			}
			dst.SetMapIndex(key, e)
		}
		return true
	})
}

// structure merges a struct, or replaces an atomic one.
func (p *planner) structure(t reflect.Type, m *schema.Map) layer {
	if m == nil || m.ElementRelationship != schema.Atomic {
		return p.fields(t, m, false)
	}
	fill := p.of(t, nil)
	return func(l *laying, dst reflect.Value, v any) bool {
		dst.SetZero()
		return fill(&laying{applies: l.applies, creates: true, listed: l.listed}, dst, v)
	}
}

// fields are those of a struct; top: of an object, whose kind and apiVersion are known.
func (p *planner) fields(t reflect.Type, m *schema.Map, top bool) layer {
	type one struct {
		i     []int
		layer layer
	}
	all := map[string]one{}
	for name, f := range Fields(t) {
		to := one{f.Index, never}
		if m == nil {
			to.layer = p.of(f.Type, nil)
		} else if member, ok := m.FindField(name); ok {
			to.layer = p.of(f.Type, &member.Type)
		}
		if f.Special {
			to.layer = never
		}
		all[name] = to
	}
	for _, name := range []string{"kind", "apiVersion"} {
		if _, typed := t.FieldByName("TypeMeta"); typed && top {
			all[name] = one{nil, nil}
		} else if typed && p.schema == nil {
			all[name] = one{nil, never}
		}
	}
	return removable(func(l *laying, dst reflect.Value, v any) bool {
		members, ok := v.(map[string]any)
		if !ok {
			return false
		}
		for k, member := range members {
			f, ok := all[k]
			switch {
			case !ok:
				return false
			case f.i == nil && f.layer == nil:
			case f.i == nil, !f.layer(l, dst.FieldByIndex(f.i), member):
				return false
			}
		}
		return true
	})
}

func layScalar(kind reflect.Kind) layer {
	switch {
	case kind == reflect.String:
		return func(l *laying, dst reflect.Value, v any) bool {
			s, ok := v.(string)
			l.changed = l.changed || dst.String() != s
			dst.SetString(s)
			return ok || v == nil
		}
	case kind == reflect.Bool:
		return func(_ *laying, dst reflect.Value, v any) bool {
			b, ok := v.(bool)
			dst.SetBool(b)
			return ok || v == nil
		}
	case kind >= reflect.Int && kind <= reflect.Int64:
		return func(l *laying, dst reflect.Value, v any) bool {
			n, ok := v.(int64)
			if dst.OverflowInt(n) {
				return false
			}
			l.changed = l.changed || dst.Int() != n
			dst.SetInt(n)
			return ok || v == nil
		}
	case kind == reflect.Float64:
		return func(_ *laying, dst reflect.Value, v any) bool {
			n, ok := v.(float64)
			if i, whole := v.(int64); whole && i > -1<<53 && i < 1<<53 {
				n, ok = float64(i), true
			}
			dst.SetFloat(n)
			return (ok || v == nil) && !math.IsInf(n, 0)
		}
	}
	return never
}
