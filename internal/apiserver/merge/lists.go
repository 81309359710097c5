// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package merge

import (
	"fmt"
	"reflect"
	"slices"
	"sort"

	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// list describes how a list is merged.
type list struct {
	strategy string
	key      string // the merge key; empty: the elements are not objects
	deletes  bool   // the patch names the elements to delete
}

// positionIndex holds the first positions of the elements of a list, or of their keys.
type positionIndex struct {
	of       map[any]int
	noObject int // the first element that is not an object; -1: there is none
}

// firstPositions indexes the elements of a list by their value or key. If absent is true, elements without a key are indexed
// under nil.
func firstPositions(elements []any, key string, byKey, absent bool) positionIndex {
	p := positionIndex{of: make(map[any]int, len(elements)), noObject: -1}
	for i, e := range elements {
		v := e
		if byKey {
			m, ok := e.(object)
			if !ok && p.noObject < 0 {
				p.noObject = i
			}
			if v, ok = m[key]; !ok && !absent {
				continue
			}
		}
		if _, seen := p.at(v); !seen && hashable(v) {
			p.of[v] = i
		}
	}
	return p
}

func (p positionIndex) at(v any) (int, bool) {
	if !hashable(v) {
		return 0, false
	}
	i, ok := p.of[v]
	return i, ok
}

// find finds the element with a key. All elements before it must be objects.
func (p positionIndex) find(v any) (int, bool, error) {
	i, ok := p.at(v)
	if p.noObject >= 0 && (!ok || i > p.noObject) {
		return 0, false, fmt.Errorf("value for key %v is not a map", p.noObject) // upstream's words
	}
	return i, ok, nil
}

// ordered merges a list whose order the patch sets, and removes the list from the patch.
func ordered(original, patch object, directive string, said any, schema strategicpatch.LookupPatchMeta) error {
	delete(patch, directive)
	order, ok := said.([]any)
	if !ok {
		return mergepatch.ErrBadArgType(order, said)
	}
	name, err := listOf(directive, orderPrefix, mergepatch.ErrBadPatchFormatForSetElementOrderList)
	if err != nil {
		return err
	}
	old, found, err := listIn(original, name)
	if err != nil {
		return err
	}
	changes, changed, err := listIn(patch, name)
	if err != nil {
		return err
	}
	below, strategy, key, err := field(schema.LookupPatchMetadataForSlice(name))
	if err != nil {
		return err
	}
	if err := follows(changes, order, key); err != nil {
		return err
	}
	merged := old
	switch {
	case !found && !changed:
		return nil
	case !found:
		kept, _ := withoutDirectives(changes)
		merged = kept.([]any)
	case changed:
		if merged, err = lists(old, changes, below, list{strategy: strategy, key: key}); err != nil {
			return err
		}
	}
	in, out, err := partition(merged, order, key)
	if err != nil {
		return err
	}
	kind, err := elementKind(old, changes)
	if err != nil {
		return err
	}
	if original[name], err = arrange(in, out, order, old, key, kind == reflect.Map); err != nil {
		return err
	}
	delete(patch, name)
	return nil
}

func listIn(of object, name string) (_ []any, found bool, _ error) {
	v, found := of[name]
	if !found {
		return nil, false, nil
	}
	l, ok := v.([]any)
	if !ok {
		return nil, false, mergepatch.ErrBadArgType(l, v)
	}
	return l, true, nil
}

// follows checks that a patch's elements are in the order that the patch sets.
func follows(changes, order []any, key string) error {
	if len(order) == 0 || len(changes) == 0 {
		return nil
	}
	kept := changes
	if key != "" {
		var err error
		if kept, _, err = splitDeletions(changes); err != nil {
			return err
		}
	}
	i := 0
	for at := 0; i < len(kept) && at < len(order); {
		if m, ok := kept[i].(object); ok {
			if _, directive := m[patchDirective]; directive {
				i++
				continue
			}
		}
		same, err := alike(kept[i], order[at], key)
		if err != nil {
			return err
		}
		if same {
			i++
		}
		at++
	}
	if i < len(kept) {
		return fmt.Errorf("The order in patch list:\n%v\n doesn't match %s list:\n%v\n", changes, orderPrefix, order) // upstream's words
	}
	return nil
}

// alike reports whether two elements are the same: by their key, if they have one.
func alike(a, b any, key string) (bool, error) {
	if key == "" {
		return hashable(a) && hashable(b) && a == b, nil
	}
	var values [2]any
	for i, e := range []any{a, b} {
		m, ok := e.(object)
		if !ok {
			return false, mergepatch.ErrBadArgType(m, e)
		}
		if values[i], ok = m[key]; !ok {
			return false, mergepatch.ErrNoMergeKey(m, key)
		}
	}
	return alike(values[0], values[1], "")
}

// splitDeletions separates the elements to delete from the others in a list of objects.
func splitDeletions(elements []any) (kept, deleted []any, _ error) {
	for _, e := range elements {
		m, ok := e.(object)
		if !ok {
			return nil, nil, mergepatch.ErrBadArgType(m, e)
		}
		if m[patchDirective] == "delete" {
			deleted = append(deleted, e)
		} else {
			kept = append(kept, e)
		}
	}
	return kept, deleted, nil
}

// lists merges a patch into a list. It reuses the list's backing array as the library does, because an order that was
// set before reads what is left there.
func lists(original, patch []any, below strategicpatch.LookupPatchMeta, how list) ([]any, error) {
	if how.strategy != "merge" && !how.deletes {
		return patch, nil
	}
	if len(original) == 0 && len(patch) == 0 {
		return original, nil
	}
	kind, err := elementKind(original, patch)
	if err != nil {
		return nil, err
	}
	var merged []any
	switch {
	case kind != reflect.Map && how.deletes:
		gone := set(patch)
		return slices.DeleteFunc(slices.Clone(original), func(e any) bool { return gone[e] }), nil
	case kind != reflect.Map:
		merged = unique(append(original, patch...))
	case how.key == "":
		return nil, fmt.Errorf("cannot merge lists without merge key for %s", below.Name()) // upstream's words
	default:
		if original, patch, err = directives(original, patch, how.key); err != nil {
			return nil, err
		}
		if merged, err = elements(original, patch, below, how.key); err != nil {
			return nil, err
		}
	}
	in, out, err := partition(merged, patch, how.key)
	if err != nil {
		return nil, err
	}
	return arrange(in, out, patch, original, how.key, kind == reflect.Map)
}

// directives applies the patch elements that are directives to the list, and returns the others.
func directives(original, patch []any, key string) (_, others []any, _ error) {
	replace, deletes := false, []any{}
	others = []any{}
	for _, e := range patch {
		m := e.(object)
		switch directive, ok := m[patchDirective]; {
		case !ok:
			others = append(others, e)
		case directive == "delete":
			v, ok := m[key]
			if !ok {
				return nil, nil, mergepatch.ErrNoMergeKey(m, key)
			}
			deletes = append(deletes, v)
		case directive == "replace":
			replace = true
		case directive == "merge":
			return nil, nil, fmt.Errorf("merging lists cannot yet be specified in the patch") // upstream's words
		default:
			return nil, nil, mergepatch.ErrBadPatchType(directive, m)
		}
	}
	if len(deletes) > 0 {
		original = without(original, deletes, key)
	}
	if replace {
		return others, nil, nil
	}
	return original, others, nil
}

// without removes elements by their keys, one after the other. Each removal leaves the list's last element in the room
// behind the list.
func without(elements, keys []any, key string) []any {
	at := map[any][]int{}
	for i, e := range elements {
		if v, ok := e.(object)[key]; ok && hashable(v) {
			at[v] = append(at[v], i)
		}
	}
	gone := make([]bool, len(elements))
	last, behind := len(elements)-1, []any{}
	for _, k := range keys {
		if !hashable(k) {
			continue
		}
		for _, i := range at[k] {
			for last >= 0 && gone[last] {
				last--
			}
			behind = append(behind, elements[last])
			gone[i] = true
		}
		delete(at, k)
	}
	kept := 0
	for i, e := range elements {
		if !gone[i] {
			elements[kept] = e
			kept++
		}
	}
	slices.Reverse(behind)
	copy(elements[kept:], behind)
	return elements[:kept]
}

// elements merges objects into those with the same keys, and appends the others.
func elements(original, patch []any, below strategicpatch.LookupPatchMeta, key string) ([]any, error) {
	at := firstPositions(original, key, true, false)
	for _, e := range patch {
		m := e.(object)
		v, ok := m[key]
		if !ok {
			return nil, mergepatch.ErrNoMergeKey(m, key)
		}
		i, found, err := at.find(v)
		if err != nil {
			return nil, err
		}
		if !found {
			if hashable(v) {
				at.of[v] = len(original)
			}
			original = append(original, e)
			continue
		}
		merged, err := objects(original[i].(object), m, below)
		if err != nil {
			return nil, err
		}
		if original[i] = merged; v == nil {
			delete(at.of, v) // an element whose key is null has no key any more
		}
	}
	return original, nil
}

// unique removes duplicate scalars. The list's last element replaces each removed one.
func unique(list []any) []any {
	at := make(map[any][]int, len(list))
	for i, v := range list {
		at[v] = append(at[v], i)
	}
	for i := 0; i < len(list); i++ {
		v := list[i]
		slices.Sort(at[v])
		for _, j := range at[v] {
			for j > i && j < len(list) && list[j] == v {
				moved := list[len(list)-1]
				if list[j] = moved; moved != v {
					at[moved] = append(at[moved], j)
				}
				list = list[:len(list)-1]
			}
		}
	}
	return list
}

// partition divides elements into those that are in another list and the others.
func partition(elements, by []any, key string) (in, out []any, _ error) {
	in, out = make([]any, 0, len(elements)), make([]any, 0, len(elements))
	at := firstPositions(by, key, key != "", false)
	for _, e := range elements {
		v, found := e, false
		if key == "" {
			_, found = at.at(v)
		} else {
			m, ok := e.(object)
			if !ok {
				return nil, nil, mergepatch.ErrBadArgType(m, e)
			}
			if v, ok = m[key]; !ok {
				return nil, nil, mergepatch.ErrNoMergeKey(m, key)
			}
			var err error
			if _, found, err = at.find(v); err != nil {
				return nil, nil, err
			}
		}
		if found {
			in = append(in, e)
		} else {
			out = append(out, e)
		}
	}
	return in, out, nil
}

// positioned is an element with its position in the new order; -1: it has none.
type positioned struct {
	element any
	at      int
}

func withPositions(elements, order []any, key string, byKey bool) []positioned {
	at := firstPositions(order, key, byKey, true)
	out := make([]positioned, 0, len(elements))
	for _, e := range elements {
		v := e
		if byKey {
			m, _ := e.(object)
			v = m[key]
		}
		p := positioned{e, -1}
		if i, ok := at.at(v); ok {
			p.at = i
		}
		out = append(out, p)
	}
	return out
}

// arrange sorts the elements of a patch by the patch's order and the other elements by the order of the old list, and
// joins them. One of the others comes before one of the patch if both were in the old list, in this order.
func arrange(patch, others, patchOrder, order []any, key string, byKey bool) ([]any, error) {
	var err error
	if patch, err = inOrder(patch, patchOrder, key, byKey); err != nil {
		return nil, err
	}
	if others, err = inOrder(others, order, key, byKey); err != nil {
		return nil, err
	}
	l, r := withPositions(others, order, key, byKey), withPositions(patch, order, key, byKey)
	out := make([]any, 0, len(l)+len(r))
	for len(l) > 0 && len(r) > 0 {
		if l[0].at >= 0 && l[0].at < r[0].at {
			out, l = append(out, l[0].element), l[1:]
		} else {
			out, r = append(out, r[0].element), r[1:]
		}
	}
	for _, p := range slices.Concat(l, r) {
		out = append(out, p.element)
	}
	return out, nil
}

// inOrder sorts elements. An element that the order does not contain is less than all others, and so are all others
// less than it. With such elements the result equals the library's as long as both sort with the same function of the
// standard library.
func inOrder(elements, order []any, key string, byKey bool) ([]any, error) {
	var deleted []any
	if byKey {
		for _, e := range slices.Concat(elements, order) {
			m, ok := e.(object)
			if !ok {
				return nil, mergepatch.ErrBadArgType(m, e)
			}
			if _, ok = m[key]; !ok {
				return nil, mergepatch.ErrNoMergeKey(m, key)
			}
		}
		var err error
		if elements, deleted, err = splitDeletions(elements); err != nil {
			return nil, err
		}
	}
	sorted := withPositions(elements, order, key, byKey)
	sort.SliceStable(sorted, func(i, j int) bool { return sorted[i].at < 0 || sorted[j].at < 0 || sorted[i].at < sorted[j].at })
	out := make([]any, 0, len(elements)+len(deleted))
	for _, p := range sorted {
		out = append(out, p.element)
	}
	return append(out, deleted...), nil
}
