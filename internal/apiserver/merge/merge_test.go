// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package merge

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"pgregory.net/rapid"
)

// outcome is what a library, or we, make of a patch.
type outcome struct{ result, err string }

func outcomeOf(result any, err error) outcome {
	if err != nil {
		return outcome{err: err.Error()}
	}
	if text, ok := result.([]byte); ok {
		return outcome{result: string(text)}
	}
	text, err := json.Marshal(result)
	if err != nil {
		return outcome{err: err.Error()}
	}
	return outcome{result: string(text)}
}

// TestJSON: a merge patch gives what the library of kube-apiserver gives, byte for byte.
func TestJSON(t *testing.T) {
	for _, c := range []struct{ doc, patch string }{
		{`{}`, `{}`}, {`{"a":1}`, `null`}, {`{"a":1}`, `"x"`}, {`{"a":1}`, `12`}, {`{"a":1}`, `true`}, {`{"a":1}`, ` [] `},
		{`{"a":1}`, `[1,{"b":null,"c":[null,{"d":null}]}]`},
		{`{"a":{"b":1,"c":2},"d":[1,2]}`, `{"a":{"b":null,"e":{"f":null,"g":[{"h":null}]}},"d":{"x":null}}`},
		{`{"a":{"b":1}}`, `{"a":[{"b":null}]}`}, {`{"a":"b"}`, `{"a":[{"b":null}]}`}, {`{"a":null}`, `{"a":{"b":null}}`},
		{`{"a":null}`, `{"b":1}`},
		{`{"a":{}}`, `{"a":{}, "b" : { } , "c" :[ ] }`}, {`{"a":1.0}`, `{"b":1e3,"c":1.50,"d":-0,"e":12345678901234567890}`},
		{`{"<a>":"<b>"}`, `{"<c>":"& \u00e4 \ud800 \"\\ ä","\u0061":1}`}, {`{"ä":1,"b\"":{"c":1}}`, `{"ä":2,"b\"":{"c":null}}`},
		{`{"a":{"b":{"c":"]}"}}}`, `{"a":{"b":{"c":"{\\\"["}}}`}, {`{"a":1}`, `{"a":2,"a":3,"b":{"c":1},"b":{"d":1}}`},
		{`{"":{"":1}}`, `{"":{"":null," ":" "}}`},
	} {
		compareJSON(t, c.doc, c.patch)
	}
}

type failing interface {
	Helper()
	Errorf(string, ...any)
}

func compareJSON(t failing, doc, patch string) {
	t.Helper()
	want, err := jsonpatch.MergePatch([]byte(doc), []byte(patch))
	wanted := outcomeOf(want, err)
	got, err := JSON([]byte(doc), []byte(patch))
	if had := outcomeOf(got, err); had != wanted {
		t.Errorf("%s\npatched by %s\nis %+v\nwant %+v", doc, patch, had, wanted)
	}
}

// FuzzJSON: so it does for any object and patch.
func FuzzJSON(f *testing.F) {
	f.Add(`{"a":{"b":[1,"\\\"]"],"c":null}}`, ` { "a" : {"b":null,"d":[{"e":null}] } , "f":1.0}`)
	f.Add(`{"a":[{}]}`, `[{"a":null}]`)
	f.Fuzz(func(t *testing.T, doc, patch string) {
		var m map[string]json.RawMessage
		if json.Unmarshal([]byte(doc), &m) != nil || m == nil || !json.Valid([]byte(patch)) {
			return
		}
		canonical, err := json.Marshal(m) // a stored object has no name twice
		if err != nil || strings.Contains(doc, `{`) && strings.Count(doc, `"`) != strings.Count(string(canonical), `"`) {
			return
		}
		if repeated(json.NewDecoder(strings.NewReader(doc))) {
			return
		}
		compareJSON(t, doc, patch)
	})
}

// repeated reports whether an object has a name twice.
func repeated(d *json.Decoder) bool {
	t, err := d.Token()
	if err != nil {
		return true
	}
	names := map[string]bool{}
	for t == json.Delim('{') || t == json.Delim('[') {
		if !d.More() {
			_, _ = d.Token()
			return false
		}
		if t == json.Delim('{') {
			name, err := d.Token()
			if s, ok := name.(string); err != nil || !ok || names[s] {
				return true
			} else {
				names[s] = true
			}
		}
		if repeated(d) {
			return true
		}
	}
	return false
}

// shape has all that tags can say of a field.
type shape struct {
	Name   string            `json:"name,omitempty"`
	Items  []shape           `json:"items,omitempty" patchStrategy:"merge" patchMergeKey:"name"`
	Tags   []any             `json:"tags,omitempty" patchStrategy:"merge"`
	Plain  []any             `json:"plain,omitempty"`
	Kept   *shape            `json:"kept,omitempty" patchStrategy:"retainKeys"`
	Whole  *shape            `json:"whole,omitempty" patchStrategy:"replace"`
	Both   []shape           `json:"both,omitempty" patchStrategy:"merge,retainKeys" patchMergeKey:"name"`
	Wrong  []shape           `json:"wrong,omitempty" patchStrategy:"merge"`
	Inner  *shape            `json:"inner,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
}

// scalars are few, so that elements meet.
func scalar() *rapid.Generator[any] {
	return rapid.SampledFrom([]any{"a", "b", "c", "d", int64(1), 1.5, true, nil})
}

func name() *rapid.Generator[any] {
	return rapid.SampledFrom([]any{"a", "b", "c", "d", "e", "f", "a", "b", "c", "d", "e", "f", int64(1), nil})
}

// drawn is an object of the shape, or a patch of one.
func drawn(t *rapid.T, depth int, patch bool) map[string]any {
	out := map[string]any{}
	if rapid.IntRange(0, 9).Draw(t, "named") > 0 {
		out["name"] = name().Draw(t, "name")
	}
	text := rapid.SampledFrom([]any{"a", "b", "c", "d", "e"})
	for _, field := range []string{"items", "tags", "plain", "kept", "whole", "both", "wrong", "inner", "labels"} {
		if rapid.IntRange(0, 3).Draw(t, "has "+field) > 0 {
			continue
		}
		if rapid.IntRange(0, 19).Draw(t, "odd") == 0 {
			out[field] = scalar().Draw(t, field)
			continue
		}
		switch field {
		case "tags", "plain":
			list := make([]any, 0)
			for range rapid.IntRange(0, 5).Draw(t, "length") {
				v := text.Draw(t, "tag")
				if rapid.IntRange(0, 29).Draw(t, "odd") == 0 {
					v = scalar().Draw(t, "tag")
				}
				list = append(list, v)
			}
			out[field] = list
		case "items", "both", "wrong":
			list := make([]any, 0)
			for range rapid.IntRange(0, 5).Draw(t, "length") {
				if depth > 0 {
					list = append(list, drawn(t, depth-1, patch))
				} else {
					list = append(list, map[string]any{"name": name().Draw(t, "name")})
				}
			}
			out[field] = list
		case "labels":
			out[field] = map[string]any{"a": text.Draw(t, "label"), "x": text.Draw(t, "label")}
		default:
			if depth > 0 {
				out[field] = drawn(t, depth-1, patch)
			}
		}
	}
	if patch {
		addDirectives(t, out)
	}
	return out
}

// addDirectives adds directives to a patch.
func addDirectives(t *rapid.T, patch map[string]any) {
	if rapid.IntRange(0, 4).Draw(t, "directive") == 0 {
		patch["$patch"] = rapid.SampledFrom([]any{"delete", "delete", "delete", "replace", "merge", "other", int64(1)}).Draw(t, "$patch")
	}
	if rapid.IntRange(0, 9).Draw(t, "retain") == 0 {
		names := []any{"name", "items", "tags"}
		for name := range patch {
			names = append(names, name)
		}
		slices.SortFunc(names, func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
		patch["$retainKeys"] = names[rapid.IntRange(0, 2).Draw(t, "left out"):]
	}
	if rapid.IntRange(0, 6).Draw(t, "deletes") == 0 {
		of := rapid.SampledFrom([]string{"/tags", "/plain", "", "X/a"}).Draw(t, "of")
		patch["$deleteFromPrimitiveList"+of] = []any{name().Draw(t, "deleted"), name().Draw(t, "deleted")}
	}
	for _, field := range []string{"items", "both", "tags"} {
		if rapid.IntRange(0, 3).Draw(t, "order of "+field) > 0 {
			continue
		}
		var order []any
		if list, ok := patch[field].([]any); ok && rapid.Bool().Draw(t, "follows") {
			for _, e := range list {
				if m, ok := e.(map[string]any); ok && field != "tags" {
					order = append(order, map[string]any{"name": m["name"]})
				} else {
					order = append(order, e)
				}
			}
		}
		for range rapid.IntRange(0, 4).Draw(t, "length") {
			v := name().Draw(t, "ordered")
			at := rapid.IntRange(0, len(order)).Draw(t, "at")
			if field != "tags" {
				v = map[string]any{"name": v}
			}
			order = slices.Insert(order, at, v)
		}
		patch["$setElementOrder/"+field] = append([]any{}, order...)
	}
}

// outcomes are what the library makes of a patch. There are several where its result is a matter of chance.
func outcomes(original, patch map[string]any) (all map[outcome]bool) {
	all = map[outcome]bool{}
	for range 12 {
		func() {
			defer func() {
				if p := recover(); p != nil {
					all[outcome{err: "panic"}] = true
				}
			}()
			all[outcomeOf(strategicpatch.StrategicMergeMapPatch(runtime.DeepCopyJSON(original), runtime.DeepCopyJSON(patch), &shape{}))] = true
		}()
	}
	return all
}

// TestStrategic: a strategic merge patch gives what the library of kube-apiserver gives, with the same order of lists and the same errors.
func TestStrategic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		original, patch := drawn(t, 2, false), drawn(t, 2, true)
		want := outcomes(original, patch)
		if want[outcome{err: "panic"}] {
			return
		}
		got := map[outcome]bool{}
		for range 12 {
			o := outcomeOf(Strategic(runtime.DeepCopyJSON(original), runtime.DeepCopyJSON(patch), &shape{}))
			if want[o] {
				return
			}
			got[o] = true
		}
		before, err := json.Marshal([]any{original, patch})
		if err != nil {
			t.Fatal(err)
		}
		t.Fatalf("%s\nis %+v\nwant %+v", before, slices.Collect(maps.Keys(got)), slices.Collect(maps.Keys(want)))
	})
}

// TestStrategicRefuses: there are no tags to go by where an object has no type of its own, and a list with nulls is refused in words
// where the library panics.
func TestStrategicRefuses(t *testing.T) {
	if _, err := Strategic(map[string]any{}, map[string]any{},
		&unstructured.Unstructured{}); err != mergepatch.ErrUnsupportedStrategicMergePatchFormat {
		t.Errorf("without a type: %v", err)
	}
	if _, err := Strategic(map[string]any{}, map[string]any{}, 1); err == nil {
		t.Error("no struct, and no error")
	}
	for _, patch := range []map[string]any{
		{"tags": []any{nil}},
		{"tags": []any{"b", nil}},
		{"items": []any{nil}},
	} {
		original := map[string]any{"tags": []any{"a"}, "items": []any{map[string]any{"name": "a"}}}
		if _, err := Strategic(original, patch, &shape{}); err == nil || !strings.Contains(err.Error(), "list element types are not identical") {
			t.Errorf("%v: %v", patch, err)
		}
	}
	keys := []any{map[string]any{"name": map[string]any{}}, map[string]any{"name": map[string]any{}},
		map[string]any{"name": []any{}, "$patch": "delete"}}
	if merged, err := Strategic(map[string]any{"items": []any{map[string]any{"name": "a"}}}, map[string]any{"items": keys},
		&shape{}); err != nil || len(merged["items"].([]any)) != 3 {
		t.Errorf("keys that are no scalars: %v, %v", merged, err)
	}
}
