// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/mortise-dev/mortise/resource"
)

// maxMembers is the maximum number of members of a map or list whose fields are tracked. The library inserts the fields
// into a sorted array in random order, so its work grows with the square of their number: 200,000 keys of a ConfigMap
// took a minute.
const maxMembers = 20_000

// crowded reports whether a map or list of an object has more members than that.
func crowded(obj resource.Object) bool {
	switch o := obj.(type) {
	case nil:
		return false
	case *unstructured.Unstructured:
		return manyWithin(o.Object)
	}
	if o, ok := obj.(interface{ Size() int }); ok && o.Size() < 2*maxMembers {
		return false // each member takes two bytes at least
	}
	for _, e := range obj.GetManagedFields() {
		// Field names that are not sorted cause as much work.
		if e.FieldsV1 != nil && strings.Count(e.FieldsV1.GetRawString(), `":`) > 2*maxMembers {
			return true
		}
	}
	return manyIn(reflect.ValueOf(obj))
}

// manyWithin is crowded for JSON values.
func manyWithin(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		if len(v) > maxMembers {
			return true
		}
		for _, m := range v {
			if manyWithin(m) {
				return true
			}
		}
	case []any:
		if len(v) > maxMembers {
			return true
		}
		for _, e := range v {
			if manyWithin(e) {
				return true
			}
		}
	}
	return false
}

// manyIn is crowded for Go values.
func manyIn(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return !v.IsNil() && manyIn(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			if manyIn(v.Field(i)) {
				return true
			}
		}
	case reflect.Slice:
		if plain(v.Type().Elem()) {
			return v.Type().Elem().Kind() != reflect.Uint8 && v.Len() > maxMembers
		}
		for i := range v.Len() {
			if i == maxMembers || manyIn(v.Index(i)) {
				return true
			}
		}
	case reflect.Map:
		if v.Len() > maxMembers {
			return true
		}
		if plain(v.Type().Elem()) {
			return false
		}
		for members := v.MapRange(); members.Next(); {
			if manyIn(members.Value()) {
				return true
			}
		}
	}
	return false
}

// plain reports whether values of a type hold no map and no list.
func plain(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Struct, reflect.Slice, reflect.Map:
		return t == reflect.TypeFor[metav1.Time]()
	}
	return true
}
