// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

func TestParsePath(t *testing.T) {
	named := func(n string) Element { return Element{Name: n} }
	at := func(i int) Element { return Element{List: true, Index: i} }
	for s, want := range map[string]Path{
		"spec":                       {named("spec")},
		".spec.containers[0].image":  {named("spec"), named("containers"), at(0), named("image")},
		"spec.containers[12]":        {named("spec"), named("containers"), at(12)},
		`.metadata.labels["a/b"]`:    {named("metadata"), named("labels"), named("a/b")},
		`metadata.labels['a.b/c"d']`: {named("metadata"), named("labels"), named(`a.b/c"d`)},
		`metadata.labels.a\.b/c`:     {named("metadata"), named("labels"), named("a.b/c")},
		`$.spec`:                     {named("spec")},
		`["spec"][0]`:                {named("spec"), at(0)},
		`data.["x"]`:                 {named("data"), named("x")},
		`data["\"\\"]`:               {named("data"), named(`"\`)},
		`spec.c[name=web].image`:     {named("spec"), named("c"), {List: true, Name: "name", Value: "web"}, named("image")},
		`spec.c[name="a]b"]`:         {named("spec"), named("c"), {List: true, Name: "name", Value: "a]b"}},
	} {
		got, err := ParsePath(s)
		if err != nil {
			t.Errorf("%s: %v", s, err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", s, diff)
		}
	}
	for _, s := range []string{"", ".", "$", "a..b", "a.", "a[", "a[]", "a[-1]", "a[+1]", "a[x]", `a["b`, `a["b"`, `a["b\`, `a\`, "a]b", `a"b`,
		"a[0]b", "a[=b]", "a[b=c", "a[99999999999999999999]", `a[b="c"d]`} {
		if p, err := ParsePath(s); err == nil {
			t.Errorf("%q was read as %v", s, p)
		}
	}
}

func TestPathLeads(t *testing.T) {
	var v any
	if err := json.Unmarshal([]byte(`{"a": {"b/c": [{"name": "x", "n": 1}, {"name": "y", "n": null}]}}`), &v); err != nil {
		t.Fatal(err)
	}
	for s, want := range map[string]any{
		`a["b/c"][0].n`: 1.0, `a["b/c"][name=x].n`: 1.0, `a["b/c"][name=y].n`: nil,
	} {
		p, err := ParsePath(s)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := p.In(v); !ok || got != want {
			t.Errorf("%s: got %v, %t", s, got, ok)
		}
	}
	for _, s := range []string{"b", "a.x", `a["b/c"][2]`, `a["b/c"][name=z]`, `a["b/c"].name`, "a[0]", "a.b.c.d"} {
		p, err := ParsePath(s)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := p.In(v); ok {
			t.Errorf("%s leads to %v", s, got)
		}
	}
}

func FuzzPath(f *testing.F) {
	for _, s := range []string{"spec.containers[0].image", `.metadata.labels["a/b"]`, `a\.b['c'][name=x]`, "$", `a[k="v"]`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePath(s)
		if err != nil {
			return
		}
		again, err := ParsePath(p.String())
		if err != nil {
			t.Fatalf("%q was read, and what is printed of it, %q, is not: %v", s, p, err)
		}
		if diff := cmp.Diff(p, again); diff != "" {
			t.Fatalf("%q, printed as %q, is another: %s", s, p, diff)
		}
		p.In(map[string]any{"a": []any{map[string]any{"name": "x"}}})
	})
}

func TestDiff(t *testing.T) {
	for name, c := range map[string]struct {
		before, after string
		want          []string
	}{
		"same":           {`{"a": [1, {"b": 2}]}`, `{"a": [1, {"b": 2}]}`, nil},
		"map":            {`{"a": 1, "b": 2, "c": 3}`, `{"b": 3, "c": 3, "d": 4}`, []string{"remove a", "replace b", "add d"}},
		"name":           {`{"l": {}}`, `{"l": {"a/b~c": "x"}}`, []string{`add l["a/b~c"]`}},
		"put in front":   {`{"a": [1, 2]}`, `{"a": [0, 1, 2]}`, []string{"add a[0]"}},
		"put at the end": {`{"a": [1, 2]}`, `{"a": [1, 2, 3, 4]}`, []string{"add a[2]", "add a[3]"}},
		"taken out":      {`{"a": [1, 2, 3, 4]}`, `{"a": [1, 4]}`, []string{"remove a[2]", "remove a[1]"}},
		"changed inside": {`{"a": [{"b": 1}, {"c": 1}]}`, `{"a": [{"b": 2}, {"c": 1}]}`, []string{"replace a[0].b"}},
		"both":           {`{"a": [1, 2, 3]}`, `{"a": [9, 3]}`, []string{"replace a[0]", "remove a[1]"}},
		"other kinds":    {`{"a": [1], "b": {}}`, `{"a": {}, "b": null}`, []string{"replace a", "replace b"}},
		"whole":          {`1`, `2`, []string{"replace "}},
	} {
		var before, after any
		if err := json.Unmarshal([]byte(c.before), &before); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(c.after), &after); err != nil {
			t.Fatal(err)
		}
		changes := Diff(before, after)
		var got []string
		for _, ch := range changes {
			got = append(got, ch.Op+" "+ch.Field)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if name != "whole" {
			applies(t, name, c.before, c.after, changes)
		}
	}
}

// applies wants the changes to be a JSON patch that makes after of before.
func applies(t *testing.T, name, before, after string, changes []Change) {
	t.Helper()
	ops := []map[string]any{}
	for _, c := range changes {
		op := map[string]any{"op": c.Op, "path": c.Path}
		if c.Op != Remove {
			op["value"] = c.Value
		}
		ops = append(ops, op)
	}
	b, err := json.Marshal(ops)
	if err != nil {
		t.Fatal(err)
	}
	p, err := jsonpatch.DecodePatch(b)
	if err != nil {
		t.Fatal(err)
	}
	got, err := p.Apply([]byte(before))
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	if !jsonpatch.Equal(got, []byte(after)) {
		t.Errorf("%s: %s makes %s of %s", name, b, got, before)
	}
}

// FuzzDiff wants every diff to be a patch that makes the one of the other.
func FuzzDiff(f *testing.F) {
	f.Add(`{"a": [1, 2, 3]}`, `{"a": [0, 2, 3, 4], "b/~": {"c": true}}`)
	f.Add(`{"a": [[1], [2]]}`, `{"a": [[2]]}`)
	f.Fuzz(func(t *testing.T, before, after string) {
		var b, a map[string]any
		if json.Unmarshal([]byte(before), &b) != nil || json.Unmarshal([]byte(after), &a) != nil || b == nil || a == nil {
			return
		}
		normal := func(v any) string {
			out, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			return string(out)
		}
		applies(t, "fuzz", normal(b), normal(a), Diff(b, a))
	})
}
