// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package componentconfig

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Effect says what a field does here.
type Effect string

// The effects.
const (
	Honoured Effect = "honoured"
	Without  Effect = "without effect" // said once, where it is set
	Refused  Effect = "refused"        // where it is set to something other than its default
)

// Field is one field of a configuration.
type Field struct {
	Name   string // as in JSON; of a field in a section, with the section and a dot before it
	Effect Effect
	Why    string
}

// Each makes a field of each name.
func Each(effect Effect, why string, names ...string) []Field {
	var out []Field
	for _, n := range names {
		out = append(out, Field{n, effect, why})
	}
	return out
}

// Sorted puts lists of fields together, by name.
func Sorted(lists ...[]Field) []Field {
	all := slices.Concat(lists...)
	slices.SortFunc(all, func(a, b Field) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Table is the fields as the rows of a table in Markdown, for the documentation.
func Table(fields []Field) string {
	var out strings.Builder
	for _, f := range fields {
		fmt.Fprintf(&out, "| `%s` | %s | %s |\n", f.Name, f.Effect, f.Why)
	}
	return out.String()
}

// Names are those of all fields of a struct, sorted. Of the fields that are sections, those in them are meant.
func Names(of reflect.Type, sections ...string) []string {
	var out []string
	each(reflect.New(of).Elem(), "", sections, func(name string, _ reflect.Value) { out = append(out, name) })
	slices.Sort(out)
	return out
}

// Set are the fields in which two structs of one type differ.
func Set(have, usual any, sections ...string) map[string]bool {
	out, before := map[string]bool{}, map[string]any{}
	each(reflect.ValueOf(usual).Elem(), "", sections, func(name string, v reflect.Value) { before[name] = v.Interface() })
	each(reflect.ValueOf(have).Elem(), "", sections, func(name string, v reflect.Value) {
		if !reflect.DeepEqual(v.Interface(), before[name]) {
			out[name] = true
		}
	})
	return out
}

// each visits fields by their names in JSON, but not what is embedded.
func each(v reflect.Value, under string, sections []string, visit func(string, reflect.Value)) {
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		switch {
		case name == "":
		case slices.Contains(sections, name):
			each(v.Field(i), under+name+".", nil, visit)
		default:
			visit(under+name, v.Field(i))
		}
	}
}

// Unheeded says of each field that is set and without effect that it is.
func Unheeded(fields []Field, set map[string]bool) []string {
	var out []string
	for _, f := range fields {
		if f.Effect == Without && set[f.Name] {
			out = append(out, fmt.Sprintf("%s is without effect: %s", f.Name, f.Why))
		}
	}
	if set["featureGates"] {
		out = append(out, "featureGates are without effect beyond what is checked of this configuration")
	}
	return out
}

// Unsupported are the complaints about fields whose neglect would be unsafe and that are set, but for those that are harmless so.
func Unsupported(fields []Field, set, harmless map[string]bool) []error {
	var out []error
	for _, f := range fields {
		if f.Effect == Refused && set[f.Name] && !harmless[f.Name] {
			out = append(out, fmt.Errorf("%s is not supported: %s", f.Name, f.Why))
		}
	}
	return out
}
