// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// TestCostOfRules has rules that are cheap enough for a definition but too expensive for one object: the total cost and
// the cost of one rule are limited. Both errors have kube-apiserver's words.
func TestCostOfRules(t *testing.T) {
	const budget, one = "validation failed due to running out of cost budget, no further validation rules will be run",
		"call cost exceeds limit for rule"
	for _, c := range []struct {
		name        string
		rules, size int
		want        string
	}{
		{"some rules", 12, 900, ""},
		{"rules that cost too much together", 13, 900, budget},
		{"a rule that costs too much by itself", 1, 1200, one},
	} {
		t.Run(c.name, func(t *testing.T) {
			var rules []map[string]any
			for i := range c.rules {
				const each = "sets.contains(self.xs, self.xs) && %d == %[1]d" // costs the square of the length
				rules = append(rules, map[string]any{"rule": fmt.Sprintf(each, i), "message": fmt.Sprintf("rule %d", i)})
			}
			schema := map[string]any{"type": "object", "properties": map[string]any{"spec": map[string]any{
				"type": "object", "x-kubernetes-validations": rules,
				"properties": map[string]any{"xs": map[string]any{"type": "array", "maxItems": 1200, "items": map[string]any{"type": "integer"}}},
			}}}
			b, err := json.Marshal(map[string]any{"metadata": map[string]any{"name": "dears.dlg.example.com"}, "spec": map[string]any{
				"group": "dlg.example.com", "scope": "Namespaced", "names": map[string]any{"plural": "dears", "kind": "Dear"},
				"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": schema}}},
			}})
			if err != nil {
				t.Fatal(err)
			}
			def := &v1.CustomResourceDefinition{}
			if err := json.Unmarshal(b, def); err != nil {
				t.Fatal(err)
			}
			kind := Definitions()
			kind.Versions[0].Default(def)
			kind.Strategy.PrepareCreate(context.Background(), def)
			if errs := kind.Strategy.Validate(context.Background(), def); len(errs) > 0 {
				t.Fatal(errs)
			}
			d, err := Compile(def, nil)
			if err != nil {
				t.Fatal(err)
			}
			xs := strings.TrimSuffix(strings.Repeat("1,", c.size), ",")
			u := object(t, []byte(`{"apiVersion":"dlg.example.com/v1","kind":"Dear","metadata":{"name":"d"},"spec":{"xs":[`+xs+`]}}`))
			_, _, err = create(in("v1"), d, "v1", u)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("create says %v, want %q", err, c.want)
			}
			if err != nil && strings.Count(err.Error(), c.want) != 1 {
				t.Errorf("rules went on after the end of their budget: %v", err)
			}
		})
	}
}
