// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"reflect"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// ReadBacker is implemented by codecs that can make an object what Decode would return for its encoding, without decoding it. The object
// must belong to the caller alone.
type ReadBacker interface {
	// ReadBack reports whether it did; if not, parts of the object may be as Decode would return them.
	ReadBack(obj Object) bool
}

// ReadBack implements [ReadBacker]. The object keeps what the encoding has no room for of quantities, such as 1000m for 1, which no
// encoding shows.
func (c *protobufCodec) ReadBack(obj Object) bool {
	v := reflect.ValueOf(obj)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return false
	}
	if v.Type() != c.readBack.of {
		return false
	}
	if n := c.readBack.get(); n != nil && !n(v.Elem()) {
		return false
	}
	obj.GetObjectKind().SetGroupVersionKind(c.gvk)
	return true
}

// readBack makes the function for a type when it is asked for it first.
type readBack struct {
	of   reflect.Type // a pointer to a struct
	once sync.Once
	made normalize
}

func (r *readBack) get() normalize {
	r.once.Do(func() {
		r.made = (&normalizers{made: map[reflect.Type]*normalize{}}).of(r.of.Elem())
	})
	return r.made
}

// normalize makes a value as it is after it was encoded and decoded, and reports whether it could. Nil: all values of the type are so.
type normalize func(v reflect.Value) bool

// normalizers makes the functions of types that may contain themselves.
type normalizers struct{ made map[reflect.Type]*normalize }

var (
	timeType     = reflect.TypeFor[metav1.Time]()
	microType    = reflect.TypeFor[metav1.MicroTime]()
	fieldsType   = reflect.TypeFor[metav1.FieldsV1]()
	quantityType = reflect.TypeFor[resource.Quantity]()
	typeMetaType = reflect.TypeFor[metav1.TypeMeta]()
	// Of these, all values are encoded whole.
	plainTypes = map[reflect.Type]bool{
		reflect.TypeFor[intstr.IntOrString](): true, reflect.TypeFor[metav1.Duration](): true, typeMetaType: true,
	}
)

func (n *normalizers) of(t reflect.Type) normalize {
	if known, ok := n.made[t]; ok {
		if known == nil {
			return nil
		}
		return func(v reflect.Value) bool { return *known == nil || (*known)(v) } // it may still be nil: the type contains itself
	}
	to := new(normalize)
	n.made[t] = to
	*to = n.make(t)
	if *to == nil {
		n.made[t] = nil
	}
	return *to
}

func (n *normalizers) make(t reflect.Type) normalize {
	switch {
	case t == timeType:
		return func(v reflect.Value) bool {
			at := v.Addr().Interface().(*metav1.Time)
			at.Time = readTime(at.Time, time.Second)
			return true
		}
	case t == microType:
		return func(v reflect.Value) bool {
			at := v.Addr().Interface().(*metav1.MicroTime)
			at.Time = readTime(at.Time, time.Microsecond)
			return true
		}
	case t == quantityType:
		return func(v reflect.Value) bool { return readQuantity(v.Addr().Interface().(*resource.Quantity)) }
	case t == fieldsType, plainTypes[t]:
		return nil
	}
	switch kind := t.Kind(); {
	case kind == reflect.String, kind >= reflect.Bool && kind <= reflect.Float64:
		return nil
	case kind == reflect.Pointer:
		return n.pointer(t)
	case kind == reflect.Slice:
		return n.slice(t)
	case kind == reflect.Map:
		return n.dictionary(t)
	case kind == reflect.Struct:
		return n.fields(t)
	}
	return absent
}

// absent accepts only a value that is not there: of its type it is not known what the encoding keeps.
func absent(v reflect.Value) bool { return v.IsZero() }

// readTime is a time as it is read, in whole units.
func readTime(t time.Time, unit time.Duration) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return time.Unix(t.Unix(), int64(t.Nanosecond())/int64(unit)*int64(unit)).Local()
}

// zero is a quantity of no notation, as it is read.
var zero = resource.MustParse("0")

// readQuantity reports whether the text of a quantity shows its notation, by which sums of it are written.
func readQuantity(q *resource.Quantity) bool {
	switch q.Format {
	case resource.DecimalSI:
		return true
	case resource.BinarySI:
		n, ok := q.AsInt64()
		return ok && n >= 1024 && n%1024 == 0 // else it has no suffix
	case "":
		if !q.IsZero() {
			return false
		}
		*q = zero.DeepCopy()
		return true
	}
	return false
}

func (n *normalizers) pointer(t reflect.Type) normalize {
	to := n.of(t.Elem())
	if to == nil {
		return nil
	}
	return func(v reflect.Value) bool { return v.IsNil() || to(v.Elem()) }
}

// messageItself reports whether a type that is no struct has an encoding of its own.
func messageItself(t reflect.Type) bool {
	_, ok := reflect.PointerTo(t).MethodByName("Unmarshal")
	return ok
}

// slice makes an empty slice nil. Bytes stay: an encoding tells them from none.
func (n *normalizers) slice(t reflect.Type) normalize {
	element := t.Elem()
	switch {
	case messageItself(t):
		return absent
	case element.Kind() == reflect.Uint8:
		return nil
	case element.Kind() == reflect.Slice, element.Kind() == reflect.Map, element.Kind() == reflect.Pointer:
		return absent
	}
	each := n.of(element)
	return func(v reflect.Value) bool {
		if v.Len() == 0 {
			if !v.IsNil() {
				v.SetZero()
			}
			return true
		}
		for i := range v.Len() {
			if each != nil && !each(v.Index(i)) {
				return false
			}
		}
		return true
	}
}

// dictionary makes an empty map nil. Its values are not changed.
func (n *normalizers) dictionary(t reflect.Type) normalize {
	element := t.Elem()
	if messageItself(t) || t.Key().Kind() != reflect.String {
		return absent
	}
	var kept func(v reflect.Value) bool // of a value; nil: each is
	switch {
	case element == quantityType:
		kept = func(v reflect.Value) bool {
			q := v.Addr().Interface().(*resource.Quantity)
			return q.Format != "" && readQuantity(q)
		}
	case element.Kind() == reflect.Slice && element.Elem().Kind() == reflect.Uint8:
		kept = func(v reflect.Value) bool { return !v.IsNil() } // it is read as empty bytes
	case n.of(element) != nil:
		kept = func(reflect.Value) bool { return false }
	}
	return func(v reflect.Value) bool {
		if v.Len() == 0 {
			if !v.IsNil() {
				v.SetZero()
			}
			return true
		}
		if kept == nil {
			return true
		}
		one := reflect.New(element).Elem()
		for entries := v.MapRange(); entries.Next(); {
			if one.SetIterValue(entries); !kept(one) {
				return false
			}
		}
		return true
	}
}

// fields are those of a struct. What has no number in the encoding must not be set.
func (n *normalizers) fields(t reflect.Type) normalize {
	type one struct {
		i  int
		of normalize
	}
	var all []one
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Type == typeMetaType && f.Anonymous {
			continue
		}
		if number, _, _ := strings.Cut(f.Tag.Get("protobuf"), ","); number == "" || number == "-" || !f.IsExported() {
			all = append(all, one{i, absent})
		} else if of := n.of(f.Type); of != nil {
			all = append(all, one{i, of})
		}
	}
	if len(all) == 0 {
		return nil
	}
	return func(v reflect.Value) bool {
		for _, f := range all {
			if !f.of(v.Field(f.i)) {
				return false
			}
		}
		return true
	}
}
