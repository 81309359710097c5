// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package initializers

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestConfigurationsAreChecked validates configurations with one error each.
func TestConfigurationsAreChecked(t *testing.T) {
	kind, err := Kind()
	if err != nil {
		t.Fatal(err)
	}
	const good = `{name: a.example.com, rules: [{apiGroups: [""], apiVersions: [v1], resources: [pods]}]}`
	for _, c := range []struct{ initializers, want string }{
		{good, ""},
		{`{name: a.example.com}`, ""},
		{`{name: a.example.com, rules: [{apiGroups: ["*"], apiVersions: ["*"], resources: ["*"]}]}`, ""},
		{`{rules: []}`, `initializers[0].name: Required value`},
		{`{name: ""}`, `initializers[0].name: Required value`},
		{`{name: example.com}`,
			`initializers[0].name: Invalid value: "example.com": should be a domain with at least three segments separated by dots`},
		{`{name: A.example.com}`, `initializers[0].name: Invalid value: "A.example.com": a lowercase RFC 1123 subdomain`},
		{good + "," + good, `initializers[1]: Duplicate value: {"name":"a.example.com"}`},
		{`{name: a.example.com, rules: [{}]}`,
			`[initializers[0].rules[0].apiGroups: Required value, initializers[0].rules[0].apiVersions: Required value, initializers[0].rules[0].resources: Required value]`},
		{`{name: a.example.com, rules: [{apiGroups: ["*", apps], apiVersions: [v1], resources: [pods]}]}`,
			`initializers[0].rules[0].apiGroups: Invalid value: ["*","apps"]: if '*' is present, must not specify other API groups`},
		{`{name: a.example.com, rules: [{apiGroups: [""], apiVersions: ["*", v1], resources: [pods]}]}`,
			`initializers[0].rules[0].apiVersions: Invalid value: ["*","v1"]: if '*' is present, must not specify other API versions`},
		{`{name: a.example.com, rules: [{apiGroups: [""], apiVersions: [""], resources: [pods]}]}`,
			`initializers[0].rules[0].apiVersions[0]: Required value`},
		{`{name: a.example.com, rules: [{apiGroups: [""], apiVersions: [v1], resources: [pods/status]}]}`,
			`initializers[0].rules[0].resources[0]: Invalid value: "pods/status": must not specify subresources`},
		{`{name: a.example.com, rules: [{apiGroups: [""], apiVersions: [v1], resources: [pods, "*"]}]}`,
			`initializers[0].rules[0].resources: Invalid value: ["pods","*"]: if '*' is present, must not specify other resources`},
		{`{name: a.example.com, rules: [{apiGroups: [rbac.authorization.k8s.io], apiVersions: [v1], resources: [roles]}]}`,
			`initializers[0].rules[0].apiGroups[0]: Invalid value: "rbac.authorization.k8s.io": objects of this group configure the server itself and cannot wait for initializers`},
		{`{name: a.example.com, objectSelector: {matchExpressions: [{key: a, operator: Near}]}}`,
			`initializers[0].objectSelector.matchExpressions[0].operator: Invalid value: "Near": not a valid selector operator`},
		{`{name: a.example.com, namespaceSelector: {matchLabels: {"a b": c}}}`,
			`initializers[0].namespaceSelector.matchLabels: Invalid value: "a b"`},
		{`{name: a.example.com, deadlineSeconds: 0}`, `initializers[0].deadlineSeconds: Invalid value: 0`},
		{`{name: a.example.com, deadlineSeconds: 86401}`, `initializers[0].deadlineSeconds: Invalid value: 86401`},
		{`{name: a.example.com, failurePolicy: Maybe}`,
			`initializers[0].failurePolicy: Unsupported value: "Maybe": supported values: "Fail", "Ignore"`},
	} {
		u := configuration(t, "c", c.initializers)
		kind.Hub().Default(u)
		got := ""
		if errs := kind.Strategy.Validate(t.Context(), u); len(errs) > 0 {
			got = errs.ToAggregate().Error()
		}
		if c.want == "" && got != "" || !strings.HasPrefix(got, c.want) {
			t.Errorf("%s:\ngot  %s\nwant %s", c.initializers, got, c.want)
		}
	}
}

// TestConfigurationsHaveDefaults decodes a nearly empty configuration.
func TestConfigurationsHaveDefaults(t *testing.T) {
	kind, err := Kind()
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"initializers": []any{map[string]any{"name": "a.example.com"}}}}
	kind.Hub().Default(u)
	c, err := read(u)
	if err != nil {
		t.Fatal(err)
	}
	if i := c.Initializers[0]; i.DeadlineSeconds != 30 || i.FailurePolicy != "Fail" {
		t.Errorf("defaults: %+v", i)
	}
	if diff := cmp.Diff([]string{"Name", "Initializers", "Deadlines", "Age"}, func() (names []string) {
		for _, d := range kind.Hub().Columns.Definitions() {
			names = append(names, d.Name)
		}
		return names
	}()); diff != "" {
		t.Error(diff)
	}
}
