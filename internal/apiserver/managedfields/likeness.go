// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"encoding/binary"
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// likeness appends everything of a Go value that decides which of its fields differ from an empty object's: two values
// with the same likeness have the same set of fields. It writes which fields are present (zero or not, nil or empty),
// the keys of maps, and the names of list elements that have names. It returns false for a value that it cannot judge.
//
// Of a pod with the label app=web and a container named c it writes that there is a label app, that there is a
// container c, and which of its fields are present. It writes neither the label's value nor the container's image.
type likeness func(b []byte, v reflect.Value) ([]byte, bool)

// alikeness builds the likenesses of Go types with their schemas.
type alikeness struct {
	schema *schema.Schema
	made   map[likenessOf]*likeness
}

// likenessOf is a type with its schema. The schema's name is empty inside of atomic values.
type likenessOf struct {
	t        reflect.Type
	name     string
	relation schema.ElementRelationship
}

var (
	timeType         = reflect.TypeFor[metav1.Time]()
	microTimeType    = reflect.TypeFor[metav1.MicroTime]()
	durationType     = reflect.TypeFor[metav1.Duration]()
	quantityType     = reflect.TypeFor[resource.Quantity]()
	intOrString      = reflect.TypeFor[intstr.IntOrString]()
	marshaler        = reflect.TypeFor[json.Marshaler]()
	convertible      = reflect.TypeFor[value.UnstructuredConverter]()
	convertibleOrNot = reflect.TypeFor[value.UnstructuredConverterWithError]()
)

// of returns the likeness of a type with a schema. The schema is nil inside of an atomic value.
func (a *alikeness) of(t reflect.Type, shape *schema.TypeRef) likeness {
	key := likenessOf{t: t}
	if shape != nil {
		if shape.NamedType == nil {
			return a.make(t, shape)
		}
		key.name = *shape.NamedType
		if shape.ElementRelationship != nil {
			key.relation = *shape.ElementRelationship
		}
	}
	if l := a.made[key]; l != nil {
		return func(b []byte, v reflect.Value) ([]byte, bool) { return (*l)(b, v) } // l may still be nil: the type contains itself
	}
	l := new(likeness)
	a.made[key] = l
	*l = a.make(t, shape)
	return *l
}

func (a *alikeness) make(t reflect.Type, shape *schema.TypeRef) likeness {
	if t.Kind() == reflect.Pointer {
		return pointed(a.of(t.Elem(), shape))
	}
	var atom schema.Atom
	if shape != nil {
		var ok bool
		if atom, ok = a.schema.Resolve(*shape); !ok {
			return strange
		}
	}
	whole := shape == nil
	switch {
	case custommadeType(t):
		if whole || atom.Scalar != nil {
			return custommade(t)
		}
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		if whole || atom.Scalar != nil {
			return filled
		}
	case t.Kind() == reflect.Slice:
		return a.list(t, atom.List, whole)
	case t.Kind() == reflect.Map && t.Key().Kind() == reflect.String:
		return a.object(t, atom.Map, whole)
	case t.Kind() == reflect.Struct:
		if whole || atom.Map != nil {
			return a.fields(t, atom.Map)
		}
	case t.Kind() >= reflect.Bool && t.Kind() <= reflect.Uint64, t.Kind() == reflect.String:
		if whole || atom.Scalar != nil {
			return scalar
		}
	}
	return strange
}

func (a *alikeness) list(t reflect.Type, l *schema.List, whole bool) likeness {
	switch {
	case whole, l != nil && l.ElementRelationship == schema.Atomic:
		return filled
	case l == nil, l.ElementRelationship != schema.Associative:
		return strange
	}
	name := entire
	if len(l.Keys) > 0 {
		if name = named(t.Elem(), l.Keys); name == nil {
			return strange
		}
	} else if k := t.Elem(); k.Kind() != reflect.String && !integer(k) || custommadeType(k) {
		return strange
	}
	element := a.of(t.Elem(), &l.ElementType)
	return func(b []byte, v reflect.Value) (_ []byte, ok bool) {
		if b, ok = filled(b, v); !ok || v.Len() == 0 {
			return b, ok
		}
		b = binary.AppendUvarint(b, uint64(v.Len()))
		for i := range v.Len() {
			e := v.Index(i)
			if b, ok = name(b, e); !ok {
				return b, false
			}
			if b, ok = element(b, e); !ok {
				return b, false
			}
		}
		return b, true
	}
}

func (a *alikeness) object(t reflect.Type, m *schema.Map, whole bool) likeness {
	switch {
	case whole, m != nil && m.ElementRelationship == schema.Atomic:
		return filled
	case m == nil || len(m.Fields) > 0:
		return strange
	}
	element := a.of(t.Elem(), &m.ElementType)
	return func(b []byte, v reflect.Value) (_ []byte, ok bool) {
		if b, ok = filled(b, v); !ok || v.Len() == 0 {
			return b, ok
		}
		keys := v.MapKeys()
		slices.SortFunc(keys, func(x, y reflect.Value) int { return strings.Compare(x.String(), y.String()) })
		b = binary.AppendUvarint(b, uint64(len(keys)))
		for _, k := range keys {
			b = text(b, k.String())
			if b, ok = element(b, v.MapIndex(k)); !ok {
				return b, false
			}
		}
		return b, true
	}
}

// fields returns the likeness of a struct. m is nil inside of an atomic value.
func (a *alikeness) fields(t reflect.Type, m *schema.Map) likeness {
	if m != nil && m.ElementRelationship == schema.Atomic {
		return a.fields(t, nil)
	}
	type field struct {
		i  int
		of likeness
	}
	var all []field
	for i := range t.NumField() {
		f := t.Field(i)
		tag := f.Tag.Get("json")
		if tag == "-" || f.PkgPath != "" && !f.Anonymous {
			continue
		}
		name, _, _ := strings.Cut(tag, ",")
		switch {
		case f.Anonymous && name == "" && f.Type.Kind() != reflect.Struct:
			return strange
		case f.Anonymous && name == "":
			all = append(all, field{i, a.fields(f.Type, m)})
		case m == nil:
			all = append(all, field{i, a.of(f.Type, nil)})
		default:
			if name == "" {
				name = f.Name
			}
			member, ok := m.FindField(name)
			if !ok {
				all = append(all, field{i, strange})
				continue
			}
			all = append(all, field{i, a.of(f.Type, &member.Type)})
		}
	}
	return func(b []byte, v reflect.Value) (_ []byte, ok bool) {
		for _, f := range all {
			if b, ok = f.of(b, v.Field(f.i)); !ok {
				return b, false
			}
		}
		return b, true
	}
}

// The states of a field.
const (
	none  = '0' // zero, or nil
	empty = 'e' // not nil, but empty
	some  = '1'
)

func pointed(of likeness) likeness {
	return func(b []byte, v reflect.Value) ([]byte, bool) {
		if v.IsNil() {
			return append(b, none), true
		}
		return of(append(b, some), v.Elem())
	}
}

// filled is the likeness of atomic values that have a length.
func filled(b []byte, v reflect.Value) ([]byte, bool) {
	switch {
	case v.IsNil():
		return append(b, none), true
	case v.Len() == 0:
		return append(b, empty), true
	}
	return append(b, some), true
}

func scalar(b []byte, v reflect.Value) ([]byte, bool) {
	if v.IsZero() {
		return append(b, none), true
	}
	return append(b, some), true
}

// strange is the likeness of unknown types: it can only judge zero values.
func strange(b []byte, v reflect.Value) ([]byte, bool) { return append(b, none), v.IsZero() }

// custommadeType reports whether values of a type write themselves.
func custommadeType(t reflect.Type) bool {
	return slices.ContainsFunc([]reflect.Type{marshaler, convertible, convertibleOrNot}, func(i reflect.Type) bool {
		return t.Implements(i) || reflect.PointerTo(t).Implements(i)
	})
}

// custommade returns the likeness of a type with its own encoding, for types that always encode as a string, a number
// or null.
func custommade(t reflect.Type) likeness {
	switch t {
	case durationType:
		return scalar
	case timeType: // a zero time may have a location
		return func(b []byte, v reflect.Value) ([]byte, bool) {
			return state(b, v.Interface().(metav1.Time).Time.IsZero())
		}
	case microTimeType:
		return func(b []byte, v reflect.Value) ([]byte, bool) {
			return state(b, v.Interface().(metav1.MicroTime).Time.IsZero())
		}
	case intOrString:
		return func(b []byte, v reflect.Value) ([]byte, bool) {
			switch i := v.Interface().(intstr.IntOrString); {
			case v.IsZero():
				return append(b, none), true
			case i.Type == intstr.String, i.Type == intstr.Int && i.IntVal != 0:
				return append(b, some, byte(i.Type)), true
			}
			return b, false
		}
	case quantityType:
		return func(b []byte, v reflect.Value) ([]byte, bool) {
			if v.IsZero() {
				return append(b, none), true
			}
			// a zero in another notation may differ from no quantity
			q := v.Interface().(resource.Quantity)
			return append(b, some), !q.IsZero()
		}
	}
	return strange
}

func state(b []byte, zero bool) ([]byte, bool) {
	if zero {
		return append(b, none), true
	}
	return append(b, some), true
}

// named returns the function that writes the key fields of a list element; nil if it does not support their types.
func named(t reflect.Type, keys []string) likeness {
	if t.Kind() != reflect.Struct || custommadeType(t) {
		return nil
	}
	var at []int
	for _, key := range keys {
		i := slices.IndexFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			return name == key && len(f.Index) == 1
		})
		if i < 0 {
			return nil
		}
		f := reflect.VisibleFields(t)[i]
		k := f.Type
		if k.Kind() == reflect.Pointer {
			k = k.Elem()
		}
		if k.Kind() != reflect.String && k.Kind() != reflect.Bool && !integer(k) || custommadeType(k) {
			return nil
		}
		at = append(at, f.Index[0])
	}
	return func(b []byte, v reflect.Value) (_ []byte, ok bool) {
		for _, i := range at {
			if b, ok = entire(b, v.Field(i)); !ok {
				return b, false
			}
		}
		return b, true
	}
}

// entire writes the value of a scalar.
func entire(b []byte, v reflect.Value) ([]byte, bool) {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return append(b, none), true
		}
		b, v = append(b, some), v.Elem()
	}
	switch {
	case v.Kind() == reflect.String:
		return text(b, v.String()), true
	case v.Kind() == reflect.Bool:
		return state(b, !v.Bool())
	case v.CanInt():
		return binary.AppendVarint(b, v.Int()), true
	}
	return b, false
}

func integer(t reflect.Type) bool { return t.Kind() >= reflect.Int && t.Kind() <= reflect.Int64 }

func text(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}
