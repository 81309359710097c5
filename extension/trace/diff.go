// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"maps"
	"reflect"
	"slices"
)

// Change is one operation of a JSON patch (RFC 6902): add, remove or replace. In addition it has the previous value, and
// the path in a readable form.
type Change struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
	Was   any    `json:"was,omitempty"`
	Field string `json:"field"`
}

// The operations.
const (
	Add     = "add"
	Remove  = "remove"
	Replace = "replace"
)

// Diff returns the changes from before to after, both decoded JSON. They apply one after the other, as those of a JSON
// patch; their values are parts of before and after, not copies.
func Diff(before, after any) []Change {
	d := differ{}
	d.compare(nil, before, after)
	return d.changes
}

type differ struct{ changes []Change }

func (d *differ) add(op string, at Path, was, value any) {
	d.changes = append(d.changes, Change{Op: op, Path: at.pointer(), Value: value, Was: was, Field: at.String()})
}

func (d *differ) compare(at Path, before, after any) {
	switch b := before.(type) {
	case map[string]any:
		if a, ok := after.(map[string]any); ok {
			d.maps(at, b, a)
			return
		}
	case []any:
		if a, ok := after.([]any); ok {
			d.lists(at, b, a)
			return
		}
	}
	if !reflect.DeepEqual(before, after) {
		d.add(Replace, at, before, after)
	}
}

func (d *differ) maps(at Path, before, after map[string]any) {
	names := slices.Sorted(maps.Keys(before))
	for name := range after {
		if _, ok := before[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		b, had := before[name]
		a, has := after[name]
		switch below := append(slices.Clip(at), Element{Name: name}); {
		case !had:
			d.add(Add, below, nil, a)
		case !has:
			d.add(Remove, below, b, nil)
		default:
			d.compare(below, b, a)
		}
	}
}

// lists compares lists after what both begin and end with, so that an element put in the front or the middle is one change.
func (d *differ) lists(at Path, before, after []any) {
	begin := 0
	for begin < len(before) && begin < len(after) && reflect.DeepEqual(before[begin], after[begin]) {
		begin++
	}
	end := 0
	for end < len(before)-begin && end < len(after)-begin && reflect.DeepEqual(before[len(before)-1-end], after[len(after)-1-end]) {
		end++
	}
	b, a := before[begin:len(before)-end], after[begin:len(after)-end]
	below := func(i int) Path { return append(slices.Clip(at), Element{List: true, Index: begin + i}) }
	both := min(len(b), len(a))
	for i := range both {
		d.compare(below(i), b[i], a[i])
	}
	for i := len(b) - 1; i >= both; i-- {
		d.add(Remove, below(i), b[i], nil)
	}
	for i := both; i < len(a); i++ {
		d.add(Add, below(i), nil, a[i])
	}
}
