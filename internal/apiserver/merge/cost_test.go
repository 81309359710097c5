// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package merge

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

// many returns a list of n elements.
func many(n int, element func(i int) any) []any {
	out := make([]any, n)
	for i := range out {
		out[i] = element(i)
	}
	return out
}

func named(i int) any { return map[string]any{"name": fmt.Sprint("n", i)} }

func text(i int) any { return fmt.Sprint("t", i) }

// work returns the processor time of a function.
func work(t *testing.T, f func()) time.Duration {
	t.Helper()
	now := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	begun := now()
	f()
	return now() - begun
}

// TestMergeCost checks that an object and patch 16 times as large take about 16 times the work. Work that grew with the
// square of the size would be 256 times as much.
func TestMergeCost(t *testing.T) {
	const small, factor, most = 500, 16, 80
	type object = map[string]any
	merge := func(original, patch func(n int) object) func(*testing.T, int) func() {
		return func(t *testing.T, n int) func() {
			o, p := original(n), patch(n)
			return func() {
				if _, err := Strategic(o, p, &shape{}); err != nil {
					t.Error(err)
				}
			}
		}
	}
	one := func(int) object { return object{"items": []any{named(-1)}, "tags": []any{"x"}} }
	full := func(n int) object { return object{"items": many(n, named), "tags": many(n, text)} }
	backwards := func(n int) []any { return many(n, func(i int) any { return named(n - i) }) }
	for name, prepare := range map[string]func(*testing.T, int) func(){
		"many objects for a list of one": merge(one, func(n int) object { return object{"items": many(n, named)} }),
		"one object for a list of many":  merge(full, func(int) object { return object{"items": []any{named(1)}} }),
		"many objects for as many":       merge(full, func(n int) object { return object{"items": backwards(n)} }),
		"an order of many objects": merge(full, func(n int) object {
			return object{"$setElementOrder/items": backwards(n),
				"items": []any{named(1)}}
		}),
		"many objects with their order": merge(full, func(n int) object {
			return object{"$setElementOrder/items": backwards(n),
				"items": backwards(n)}
		}),
		"many deletions": merge(full, func(n int) object {
			return object{"items": many(n, func(i int) any { return object{"name": fmt.Sprint("n", i), "$patch": "delete"} })}
		}),
		"many scalars for one":     merge(one, func(n int) object { return object{"tags": many(n, text)} }),
		"many scalars for as many": merge(full, func(n int) object { return object{"tags": many(n, text)} }),
		"one scalar many times":    merge(one, func(n int) object { return object{"tags": many(n, func(int) any { return "y" })} }),
		"scalars that are deleted": merge(full, func(n int) object { return object{"$deleteFromPrimitiveList/tags": many(n, text)} }),
		"an order of many scalars": merge(full, func(n int) object {
			return object{"$setElementOrder/tags": many(n, text),
				"tags": many(n, text)}
		}),
		"names that are kept":        merge(full, func(n int) object { return object{"$retainKeys": many(n, text)} }),
		"a merge patch that is deep": func(t *testing.T, n int) func() { return patched(t, deep(n/2), `{}`) },
		"of an object that is deep":  func(t *testing.T, n int) func() { return patched(t, deep(n/2), deep(n/2)) },
	} {
		t.Run(name, func(t *testing.T) {
			// The smallest of three times is the one that other work has disturbed least.
			least := func(n int) time.Duration {
				var out time.Duration
				for range 3 {
					if w := work(t, prepare(t, n)); out == 0 || w < out {
						out = w
					}
				}
				return max(out, time.Millisecond)
			}
			if s, l := least(small), least(factor*small); l > most*s {
				t.Errorf("%d times the size is %d times the work: %v, %v", factor, l/s, s, l)
			}
		})
	}
}

// deep returns an object of n levels with as much text per level at the bottom.
func deep(n int) string {
	return strings.Repeat(`{"a":`, n) + `"` + strings.Repeat("x", 20*n) + `"` + strings.Repeat("}", n)
}

func patched(t *testing.T, doc, patch string) func() {
	return func() {
		out, err := JSON([]byte(patch), []byte(doc))
		if err != nil || !json.Valid(out) {
			t.Error(err)
		}
	}
}

// TestOperationsAreBounded checks that a JSON patch with excessive work for its size is rejected, and no ordinary one.
func TestOperationsAreBounded(t *testing.T) {
	array := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat("0,", n), ",") + "]" }
	object := `{"a":` + array(100_000) + `}`
	members := `{"a":{` + strings.TrimSuffix(strings.Repeat(`"b":0,`, 100_000), ",") + `}}`
	patch := func(value string, n int) string {
		return `[{"op":"add","path":"/a","value":` + value + `}` + strings.Repeat(`,{"op":"add","path":"/a/0","value":1}`, n-1) + `]`
	}
	for name, c := range map[string]struct {
		doc, patch string
		operations int
		refused    string
	}{
		"a patch that is deep":               {`{}`, patch(deep(3_000), 1), 1, "nest too deep"},
		"an object that is deep":             {deep(3_000), patch("1", 1), 1, "nest too deep"},
		"brackets and escapes in a string":   {`{}`, patch(`"`+strings.Repeat(`[{\"`, 300_000)+`"`, 1), 1, ""},
		"brackets beside each other":         {`{}`, patch("["+strings.Repeat("[[]],", 300_000)+"0]", 1), 1, ""},
		"depth without size":                 {`{}`, patch(strings.Repeat("[", 4_000)+strings.Repeat("]", 4_000), 1), 1, ""},
		"size without depth":                 {`{}`, patch(deep(1)+`,"more":"`+strings.Repeat("x", 3<<20)+`"`, 1), 1, ""},
		"many operations on a long array":    {object, patch("1", 10_000), 10_000, "too large for its arrays"},
		"of the patch itself":                {`{}`, patch(array(100_000), 10_000), 10_000, "too large for its arrays"},
		"as many on a large object":          {members, patch("1", 10_000), 10_000, ""},
		"few on a long array":                {object, patch("1", 600), 600, ""},
		"many on nothing":                    {`{}`, patch("1", 10_000), 10_000, ""},
		"many on an array of a few thousand": {`{"a":` + array(6_000) + `}`, patch("1", 10_000), 10_000, ""},
	} {
		err := CheckOperations([]byte(c.doc), []byte(c.patch), c.operations)
		if (err != nil) != (c.refused != "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
