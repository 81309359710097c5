// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package merge

import (
	"reflect"
	"strings"
)

// Field is a field of a Go struct with a name in JSON.
type Field struct {
	Index []int // of reflect.Value.FieldByIndex: the field may be of an embedded struct
	Type  reflect.Type
	// Special means that encoding/json has a rule of its own: the name is that of several fields, or the tag has the option string.
	Special bool
}

// Fields returns the fields of a struct, and of the structs that it embeds, by their names in JSON. Fields of embedded types that decode
// themselves are left out.
func Fields(t reflect.Type) map[string]Field {
	all := map[string]Field{}
	var gather func(t reflect.Type, at []int)
	gather = func(t reflect.Type, at []int) {
		for i := range t.NumField() {
			f := t.Field(i)
			tag := f.Tag.Get("json")
			name, options, _ := strings.Cut(tag, ",")
			index := append(at[:len(at):len(at)], i)
			switch {
			case tag == "-" || !f.IsExported() && !f.Anonymous:
			case f.Anonymous && name == "":
				if f.Type.Kind() == reflect.Struct && !reflect.PointerTo(f.Type).Implements(unmarshaler) {
					gather(f.Type, index)
				}
			default:
				if name == "" {
					name = f.Name
				}
				_, twice := all[name]
				all[name] = Field{Index: index, Type: f.Type, Special: twice || strings.Contains(options, "string")}
			}
		}
	}
	gather(t, nil)
	return all
}
