// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package componentconfig

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Effect is the effect of a field.
type Effect string

// The effects.
const (
	Honoured Effect = "honoured"
	Without  Effect = "without effect" // warned about once if set
	Refused  Effect = "refused"        // an error if set to another value than the default
)

// Field is one field of a configuration.
type Field struct {
	Name   string // as in JSON; SECTION.FIELD for a field in a section
	Effect Effect
	Why    string
}

// Each returns a field for each name.
func Each(effect Effect, why string, names ...string) []Field {
	var out []Field
	for _, n := range names {
		out = append(out, Field{n, effect, why})
	}
	return out
}

// Sorted concatenates lists of fields, sorted by name.
func Sorted(lists ...[]Field) []Field {
	all := slices.Concat(lists...)
	slices.SortFunc(all, func(a, b Field) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Table formats the fields as rows of a Markdown table, for the documentation.
func Table(fields []Field) string {
	var out strings.Builder
	for _, f := range fields {
		fmt.Fprintf(&out, "| `%s` | %s | %s |\n", f.Name, f.Effect, f.Why)
	}
	return out.String()
}

// Names returns the names of all fields of a struct, sorted. It replaces sections by their fields.
func Names(of reflect.Type, sections ...string) []string {
	var out []string
	each(reflect.New(of).Elem(), "", sections, func(name string, _ reflect.Value) { out = append(out, name) })
	slices.Sort(out)
	return out
}

// Set returns the fields in which two structs of one type differ.
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

// each visits fields by their names in JSON, without embedded ones.
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

// Unheeded returns a message for each field that is set and has no effect.
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

// Unsupported returns the errors of fields that are set and would be unsafe to ignore, except harmless values.
func Unsupported(fields []Field, set, harmless map[string]bool) []error {
	var out []error
	for _, f := range fields {
		if f.Effect == Refused && set[f.Name] && !harmless[f.Name] {
			out = append(out, fmt.Errorf("%s is not supported: %s", f.Name, f.Why))
		}
	}
	return out
}
