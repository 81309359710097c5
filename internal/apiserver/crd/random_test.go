// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"fmt"
	"maps"
	"slices"

	"pgregory.net/rapid"
)

// Random schemas and objects. Most schemas are structural and most objects nearly valid; the others are more
// interesting.

type shapeOf = map[string]any

// chance returns true with a probability in percent.
func chance(t *rapid.T, percent int) bool { return rapid.IntRange(0, 99).Draw(t, "chance") < percent }

func oneOf[T any](t *rapid.T, of ...T) T { return rapid.SampledFrom(of).Draw(t, "one of") }

var fieldNames = []string{"a", "b", "c", "name", "x-y"}

// randomSchema returns a random schema with a number of levels below it.
func randomSchema(t *rapid.T, depth int) shapeOf {
	kinds := []string{"string", "string", "integer", "number", "boolean", "int-or-string", "free"}
	if depth > 0 {
		kinds = append(kinds, "object", "object", "object", "map", "array", "set", "keyed", "embedded")
	}
	var s shapeOf
	switch kind := oneOf(t, kinds...); kind {
	case "string":
		s = randomString(t)
	case "integer", "number":
		s = randomNumber(t, kind)
	case "boolean":
		s = shapeOf{"type": "boolean"}
	case "int-or-string":
		s = shapeOf{"x-kubernetes-int-or-string": true}
		if chance(t, 50) {
			s["anyOf"] = []any{shapeOf{"type": "integer"}, shapeOf{"type": "string"}}
		}
		if chance(t, 20) {
			s["pattern"] = "^[0-9]+%?$"
		}
	case "free":
		s = shapeOf{"x-kubernetes-preserve-unknown-fields": true}
		if chance(t, 60) {
			s["type"] = "object"
		}
	case "object":
		s = randomObject(t, depth)
	case "map":
		s = shapeOf{"type": "object", "additionalProperties": randomSchema(t, depth-1)}
		if chance(t, 40) {
			s["maxProperties"] = 4
		}
		if chance(t, 20) {
			s["minProperties"] = 1
		}
	case "array":
		s = shapeOf{"type": "array", "items": randomSchema(t, depth-1)}
		if chance(t, 30) {
			s["x-kubernetes-list-type"] = "atomic"
		}
		bounds(t, s, "Items")
	case "set":
		items := oneOf(t, shapeOf{"type": "string", "maxLength": 8}, shapeOf{"type": "integer"}, shapeOf{"type": "boolean"})
		s = shapeOf{"type": "array", "x-kubernetes-list-type": "set", "items": items}
		bounds(t, s, "Items")
	case "keyed":
		items := shapeOf{"type": "object", "required": []any{"name"}, "properties": shapeOf{
			"name": shapeOf{"type": "string", "maxLength": 8}, "value": randomSchema(t, depth-1),
		}}
		keys := []any{"name"}
		if chance(t, 30) {
			items["properties"].(shapeOf)["port"] = shapeOf{"type": "integer", "default": 80}
			keys = append(keys, "port")
		}
		s = shapeOf{"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys, "items": items}
		bounds(t, s, "Items")
	case "embedded":
		s = shapeOf{"type": "object", "x-kubernetes-embedded-resource": true}
		if chance(t, 50) {
			s["x-kubernetes-preserve-unknown-fields"] = true
		} else {
			s["properties"] = shapeOf{"spec": randomSchema(t, depth-1)}
		}
	}
	if chance(t, 15) {
		s["nullable"] = true
	}
	if chance(t, 20) {
		s["default"] = randomValue(t, s, 95)
	}
	return s
}

func randomString(t *rapid.T) shapeOf {
	s := shapeOf{"type": "string"}
	switch rapid.IntRange(0, 6).Draw(t, "string") {
	case 0:
		s["enum"] = []any{"a", "b", "cc"}
	case 1:
		s["format"] = oneOf(t, "date", "date-time", "uuid", "byte", "ipv4", "email", "duration", "unheard-of")
	case 2:
		s["pattern"] = oneOf(t, "^[a-z]+$", "^a", "b$")
		s["maxLength"] = 16
	case 3:
		bounds(t, s, "Length")
	case 4:
		s["maxLength"] = 12
		s["allOf"] = []any{shapeOf{"minLength": 1}, shapeOf{"pattern": "^[a-z-]*$"}}
	case 5:
		s["maxLength"] = 12
		s["x-kubernetes-validations"] = []any{oneOf(t,
			shapeOf{"rule": "self.size() < 6"},
			shapeOf{"rule": "self != 'cc'", "message": "not cc"},
			shapeOf{"rule": "self == oldSelf", "message": "never changes"},
			shapeOf{"rule": "self.matches('^[a-z]+$')", "messageExpression": "'is ' + self", "reason": "FieldValueForbidden"},
			shapeOf{"rule": "!oldSelf.hasValue() || self == oldSelf.value()", "optionalOldSelf": true},
		)}
	}
	return s
}

func randomNumber(t *rapid.T, kind string) shapeOf {
	s := shapeOf{"type": kind}
	if chance(t, 30) {
		s["minimum"] = rapid.IntRange(-3, 3).Draw(t, "minimum")
		s["exclusiveMinimum"] = chance(t, 30)
	}
	if chance(t, 30) {
		s["maximum"] = rapid.IntRange(4, 9).Draw(t, "maximum")
		s["exclusiveMaximum"] = chance(t, 30)
	}
	if chance(t, 15) {
		s["multipleOf"] = 2
	}
	if chance(t, 15) {
		s["enum"] = []any{1, 2, 8}
	}
	if kind == "integer" && chance(t, 30) {
		s["format"] = oneOf(t, "int32", "int64")
	}
	if chance(t, 20) {
		s["x-kubernetes-validations"] = []any{oneOf(t,
			shapeOf{"rule": "self < " + map[string]string{"integer": "7", "number": "7.5"}[kind]},
			shapeOf{"rule": "self >= oldSelf", "message": "only grows", "reason": "FieldValueInvalid"},
		)}
	}
	return s
}

func bounds(t *rapid.T, s shapeOf, of string) {
	if chance(t, 60) {
		s["max"+of] = rapid.IntRange(2, 5).Draw(t, "most")
	}
	if chance(t, 30) {
		s["min"+of] = rapid.IntRange(0, 2).Draw(t, "least")
	}
}

func randomObject(t *rapid.T, depth int) shapeOf {
	props := shapeOf{}
	for _, name := range fieldNames {
		if chance(t, 45) {
			props[name] = randomSchema(t, depth-1)
		}
	}
	s := shapeOf{"type": "object", "properties": props}
	names := slices.Sorted(maps.Keys(props))
	if len(names) == 0 {
		return s
	}
	some := oneOf(t, names...)
	if chance(t, 30) {
		s["required"] = []any{some}
	}
	if chance(t, 10) {
		s["x-kubernetes-preserve-unknown-fields"] = true
	}
	if chance(t, 10) {
		s["x-kubernetes-map-type"] = "atomic"
	}
	other := oneOf(t, names...)
	if chance(t, 30) {
		switch rapid.IntRange(0, 3).Draw(t, "quantor") {
		case 0:
			s["anyOf"] = []any{shapeOf{"required": []any{some}}, shapeOf{"required": []any{other}}}
		case 1:
			s["oneOf"] = []any{shapeOf{"required": []any{some}}, shapeOf{"required": []any{other}}}
		case 2:
			s["not"] = shapeOf{"required": []any{some}}
		case 3:
			s["allOf"] = []any{shapeOf{"anyOf": []any{shapeOf{"required": []any{some}}, shapeOf{"maxProperties": 1}}}}
		}
	}
	if chance(t, 30) && some != "x-y" {
		s["x-kubernetes-validations"] = []any{oneOf(t,
			shapeOf{"rule": "has(self." + some + ")", "fieldPath": "." + some, "reason": "FieldValueRequired"},
			shapeOf{"rule": "!has(oldSelf." + some + ") || has(self." + some + ")", "message": "stays"},
			shapeOf{"rule": "has(self." + some + ") == has(oldSelf." + some + ")"},
		)}
	}
	return s
}

// randomValue returns a random value for a schema; a percentage of its parts is valid.
func randomValue(t *rapid.T, s shapeOf, good int) any {
	if !chance(t, good) {
		return randomJunk(t)
	}
	if s["nullable"] == true && chance(t, 20) {
		return nil
	}
	if e, ok := s["enum"].([]any); ok && chance(t, 80) {
		return oneOf(t, e...)
	}
	if s["x-kubernetes-int-or-string"] == true {
		return oneOf[any](t, 1, 80, "50%", "http")
	}
	switch s["type"] {
	case "string":
		return oneOf(t, "a", "b", "cc", "abc", "b-b", "", "abcdefghijklm", "2020-01-02", "2020-01-02T03:04:05Z", "10.0.0.1", "YWJj", "X")
	case "integer":
		return oneOf[any](t, -4, 0, 1, 2, 3, 7, 8, 9, 4294967296)
	case "number":
		return oneOf[any](t, -4, 0, 1.5, 2, 3.25, 8, 9)
	case "boolean":
		return chance(t, 50)
	case "array":
		items, _ := s["items"].(shapeOf)
		out := []any{}
		for range rapid.IntRange(0, 4).Draw(t, "items") {
			out = append(out, randomValue(t, items, good))
		}
		return out
	}
	out := shapeOf{}
	props, _ := s["properties"].(shapeOf)
	for _, name := range slices.Sorted(maps.Keys(props)) {
		if chance(t, 75) {
			out[name] = randomValue(t, props[name].(shapeOf), good)
		}
	}
	if more, ok := s["additionalProperties"].(shapeOf); ok {
		for i := range rapid.IntRange(0, 3).Draw(t, "entries") {
			out[fmt.Sprint("k", i)] = randomValue(t, more, good)
		}
	}
	if s["x-kubernetes-embedded-resource"] == true {
		out["apiVersion"], out["kind"] = "v1", "Thing"
		if chance(t, 50) {
			out["metadata"] = randomMeta(t, good)
		}
	}
	if chance(t, 100-good) || s["x-kubernetes-preserve-unknown-fields"] == true && chance(t, 50) {
		out["unknown"] = randomJunk(t)
	}
	return out
}

func randomJunk(t *rapid.T) any {
	return oneOf[any](t, nil, "junk", 17, -1.5, true, []any{}, []any{"a", "a", nil}, shapeOf{},
		shapeOf{"a": nil, "b": 1, "metadata": shapeOf{"name": 1}})
}

func randomMeta(t *rapid.T, good int) shapeOf {
	m := shapeOf{"name": "thing"}
	for key, value := range map[string]any{
		"labels": shapeOf{"a": "b"}, "annotations": shapeOf{"note": "x"}, "generation": 3, "uid": "u-1", "finalizers": []any{"example.com/f"},
		"ownerReferences":   []any{shapeOf{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}},
		"creationTimestamp": "2020-01-02T03:04:05Z",
	} {
		if chance(t, 20) {
			m[key] = value
		}
	}
	if !chance(t, good) {
		m[oneOf(t, "labels", "annotations", "generation", "unknown", "finalizers", "creationTimestamp")] = oneOf[any](t, nil, "junk",
			shapeOf{"a": 1}, shapeOf{}, shapeOf{"B@d": "v"}, 3)
	}
	return m
}

// changed returns an edited value: some parts are random, the others unchanged.
func changed(t *rapid.T, s shapeOf, old any, good int) any {
	if chance(t, 20) {
		return randomValue(t, s, good)
	}
	switch old := old.(type) {
	case map[string]any:
		props, _ := s["properties"].(shapeOf)
		more, _ := s["additionalProperties"].(shapeOf)
		out := shapeOf{}
		for _, name := range slices.Sorted(maps.Keys(old)) {
			below, ok := props[name].(shapeOf)
			if !ok {
				below = more
			}
			switch {
			case chance(t, 10):
			case below == nil:
				out[name] = old[name]
			default:
				out[name] = changed(t, below, old[name], good)
			}
		}
		return out
	case []any:
		items, _ := s["items"].(shapeOf)
		out := []any{}
		for _, x := range old {
			if !chance(t, 10) {
				out = append(out, changed(t, items, x, good))
			}
		}
		return out
	}
	return old
}
