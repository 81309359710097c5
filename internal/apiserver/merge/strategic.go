// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package merge

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// The directives of a strategic merge patch.
const (
	patchDirective  = "$patch"
	retainDirective = "$retainKeys"
	deletePrefix    = "$deleteFromPrimitiveList"
	orderPrefix     = "$setElementOrder"
)

type object = map[string]any

// Strategic applies a strategic merge patch to an object. The struct tags of like's type determine how lists are
// merged. It changes both the object and the patch, and returns the merged object.
func Strategic(original, patch map[string]any, like any) (map[string]any, error) {
	schema, err := strategicpatch.NewPatchMetaFromStruct(like)
	if err != nil {
		return nil, err
	}
	if _, ok := like.(*unstructured.Unstructured); ok {
		return nil, mergepatch.ErrUnsupportedStrategicMergePatchFormat
	}
	return objects(original, patch, schema)
}

// objects merges a patch into an object.
func objects(original, patch object, schema strategicpatch.LookupPatchMeta) (object, error) {
	switch directive, ok := patch[patchDirective]; {
	case !ok:
	case directive == "replace":
		delete(patch, patchDirective)
		return patch, nil
	case directive == "delete":
		return object{}, nil
	default:
		return nil, mergepatch.ErrBadPatchType(directive, patch)
	}
	if original == nil {
		original = object{}
	}
	if err := retain(original, patch); err != nil {
		return nil, err
	}
	for name, order := range patch {
		if strings.HasPrefix(name, orderPrefix) {
			if err := ordered(original, patch, name, order, schema); err != nil {
				return nil, err
			}
		}
	}
	for name, value := range patch {
		if err := member(original, name, value, schema); err != nil {
			return nil, err
		}
	}
	return original, nil
}

// member merges one member of a patch into an object.
func member(original object, name string, value any, schema strategicpatch.LookupPatchMeta) error {
	deletes := strings.HasPrefix(name, deletePrefix)
	if deletes {
		of, err := listOf(name, deletePrefix, mergepatch.ErrBadPatchFormatForPrimitiveList)
		if err != nil {
			return err
		}
		if of != "" {
			name = of
		}
	}
	if value == nil {
		delete(original, name)
		return nil
	}
	old, found := original[name]
	if found && reflect.TypeOf(old) == reflect.TypeOf(value) {
		switch value := value.(type) {
		case object:
			below, strategy, _, err := field(schema.LookupPatchMetadataForStruct(name))
			if err != nil {
				return err
			}
			if strategy == "replace" {
				original[name] = value
				return nil
			}
			original[name], err = objects(old.(object), value, below)
			return err
		case []any:
			below, strategy, key, err := field(schema.LookupPatchMetadataForSlice(name))
			if err != nil {
				return err
			}
			original[name], err = lists(old.([]any), value, below, list{strategy: strategy, key: key, deletes: deletes})
			return err
		}
	} else if deletes {
		return nil
	} else {
		withoutNulls(value)
	}
	if kept, keep := withoutDirectives(value); keep {
		original[name] = kept
	} else {
		delete(original, name)
	}
	return nil
}

// field returns the merge settings from a field's tags.
func field(below strategicpatch.LookupPatchMeta, meta strategicpatch.PatchMeta, err error) (
	_ strategicpatch.LookupPatchMeta, strategy, key string, _ error,
) {
	if err != nil {
		return nil, "", "", err
	}
	all := meta.GetPatchStrategies()
	switch {
	case len(all) == 0, len(all) == 1 && all[0] == "retainKeys":
	case len(all) == 1, len(all) == 2 && all[1] == "retainKeys":
		strategy = all[0]
	case len(all) == 2 && all[0] == "retainKeys":
		strategy = all[1]
	default:
		return nil, "", "", fmt.Errorf("unexpected patch strategy: %v", all) // upstream's words
	}
	return below, strategy, meta.GetPatchMergeKey(), nil
}

// listOf returns the name of the list that a directive refers to.
func listOf(directive, prefix string, bad error) (string, error) {
	before, name, ok := strings.Cut(directive, "/")
	if !ok || before != prefix {
		return "", bad
	}
	return name, nil
}

// hashable reports whether a value can be compared with others.
func hashable(v any) bool {
	switch v.(type) {
	case object, []any:
		return false
	}
	return true
}

func set(list []any) map[any]bool {
	out := make(map[any]bool, len(list))
	for _, v := range list {
		if hashable(v) {
			out[v] = true
		}
	}
	return out
}

// retain applies the directive that lists the members which an object keeps.
func retain(original, patch object) error {
	said, ok := patch[retainDirective]
	if !ok {
		return nil
	}
	delete(patch, retainDirective)
	names, ok := said.([]any)
	if !ok {
		return mergepatch.ErrBadPatchFormatForRetainKeys
	}
	kept := set(names)
	for name, value := range patch {
		if value != nil && !kept[name] && !strings.HasPrefix(name, deletePrefix) && !strings.HasPrefix(name, orderPrefix) {
			return mergepatch.ErrBadPatchFormatForRetainKeys
		}
	}
	for name := range original {
		if !kept[name] {
			delete(original, name)
		}
	}
	return nil
}

// withoutDirectives removes directives at all levels. keep is false if the value itself is one.
func withoutDirectives(value any) (_ any, keep bool) {
	switch v := value.(type) {
	case object:
		if _, ok := v[patchDirective]; ok {
			return nil, false
		}
		for name, m := range v {
			if m, keep := withoutDirectives(m); keep {
				v[name] = m
			} else {
				delete(v, name)
			}
		}
	case []any:
		kept := []any{}
		for _, e := range v {
			if e, keep := withoutDirectives(e); keep {
				kept = append(kept, e)
			}
		}
		return kept, true
	}
	return value, true
}

// withoutNulls removes null members at all levels.
func withoutNulls(value any) {
	switch v := value.(type) {
	case object:
		for name, m := range v {
			if m == nil {
				delete(v, name)
			} else {
				withoutNulls(m)
			}
		}
	case []any:
		for _, e := range v {
			withoutNulls(e)
		}
	}
}

// elementKind returns the kind of the elements of lists. They must all have one kind, which is not a list.
func elementKind(lists ...[]any) (reflect.Kind, error) {
	var of reflect.Type
	first := true
	for _, l := range lists {
		for _, e := range l {
			t := reflect.TypeOf(e)
			switch {
			case first && t != nil && t.Kind() == reflect.Slice:
				return 0, mergepatch.ErrNoListOfLists
			case t == nil, !first && t != of:
				return 0, fmt.Errorf("list element types are not identical: %v", fmt.Sprint(lists)) // upstream's words
			}
			of, first = t, false
		}
	}
	if first {
		return 0, errors.New("no elements in any of the given slices") // upstream's words
	}
	return of.Kind(), nil
}
