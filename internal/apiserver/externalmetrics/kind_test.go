// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package externalmetrics

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/resource"
)

// routeOf returns a route with a spec, which is YAML.
func routeOf(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	text := "apiVersion: extension.mortise.dev/v1alpha1\nkind: ExternalMetricsRoute\nmetadata: {name: " + name + ", uid: u-" + name + "}\nspec: " + spec
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

func kind(t *testing.T) *resource.Descriptor {
	t.Helper()
	d, err := Kind()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestRoutesAreChecked validates routes with one error each.
func TestRoutesAreChecked(t *testing.T) {
	m, err := serving.LoadOrCreate("", []string{"127.0.0.1"}, serving.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ca := base64.StdEncoding.EncodeToString(m.CA.CertPEM)
	const to = `service: {namespace: keda, name: keda-operator-metrics-apiserver}`
	d := kind(t)
	for _, c := range []struct{ spec, want string }{
		{`{metrics: ["s*-kafka-*", "Queue:rate5m"], ` + to + `, caBundle: ` + ca + `}`, ""},
		{`{namespaces: ["team-*"], ` + to + `, insecureSkipTLSVerify: true, priority: -7}`, ""},
		{`{metrics: ["*"], ` + to + `}`, ""},
		{`{` + to + `}`, `spec: Required value: must have metrics or namespaces`},
		{`{metrics: [], namespaces: [], ` + to + `}`, `spec: Required value: must have metrics or namespaces`},
		{`{metrics: ["a"]}`, `spec.service: Required value`},
		{`{metrics: ["a"], service: {name: a}}`, `spec.service.namespace: Required value`},
		{`{metrics: ["a"], service: {namespace: a}}`, `spec.service.name: Required value`},
		{`{metrics: ["a"], service: {namespace: A, name: a}}`, `spec.service.namespace: Invalid value: "A": a lowercase RFC 1123 label`},
		{`{metrics: ["a"], service: {namespace: a, name: a.b}}`, `spec.service.name: Invalid value: "a.b": must not contain dots`},
		{`{metrics: ["a"], service: {namespace: a, name: a, port: 0}}`, `spec.service.port: Invalid value: 0`},
		{`{metrics: ["a"], service: {namespace: a, name: a, port: 65536}}`, `spec.service.port: Invalid value: 65536`},
		{`{metrics: ["a", ""], ` + to + `}`, `spec.metrics[1]: Required value`},
		{`{metrics: ["a/b"], ` + to + `}`, `spec.metrics[0]: Invalid value: "a/b": must not contain '/', '%' or spaces`},
		{`{metrics: ["a b"], ` + to + `}`, `spec.metrics[0]: Invalid value: "a b"`},
		{`{metrics: ["a", "a"], ` + to + `}`, `spec.metrics[1]: Duplicate value: "a"`},
		{`{namespaces: [""], ` + to + `}`, `spec.namespaces[0]: Required value`},
		{`{namespaces: ["Team-*"], ` + to + `}`,
			`spec.namespaces[0]: Invalid value: "Team-*": must be the name of a namespace, in which '*' stands for any characters`},
		{`{metrics: ["a"], ` + to + `, caBundle: ` + ca + `, insecureSkipTLSVerify: true}`,
			`spec.insecureSkipTLSVerify: Invalid value: true: may not be true if caBundle is present`},
		{`{metrics: ["a"], ` + to + `, caBundle: YWJj}`, `spec.caBundle: Invalid value: must be PEM certificates: `},
		{`{metrics: ["a"], ` + to + `, priority: 2147483648}`, `<nil>: Invalid value: "": Checked value must be of type integer with format int32 in spec.priority`},
	} {
		u := routeOf(t, "r", c.spec)
		d.Hub().Default(u)
		got := ""
		if errs := d.Strategy.Validate(t.Context(), u); len(errs) > 0 {
			got = errs.ToAggregate().Error()
		}
		if c.want == "" && got != "" || !strings.HasPrefix(got, c.want) {
			t.Errorf("%s:\ngot  %s\nwant %s", c.spec, got, c.want)
		}
	}
}

func TestColumns(t *testing.T) {
	d := kind(t)
	u := routeOf(t, "keda", `{metrics: ["s*-kafka-*", lag], priority: 5, service: {namespace: keda, name: server}}`)
	d.Hub().Default(u)
	for _, c := range []struct{ status, want string }{
		{`{}`, "Unknown"},
		{`{conditions: [{type: Available, status: "True", reason: Passed, message: m, lastTransitionTime: "2026-01-01T00:00:00Z"}]}`, "True"},
		{`{conditions: [{type: Available, status: "False", reason: MissingEndpoints, message: m, lastTransitionTime: "2026-01-01T00:00:00Z"}]}`,
			"False (MissingEndpoints)"},
	} {
		var status map[string]any
		if err := yaml.Unmarshal([]byte(c.status), &status); err != nil {
			t.Fatal(err)
		}
		u.Object["status"] = status
		cells, err := d.Hub().Columns.Cells(u)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]any{"keda", int64(5), "s*-kafka-*,lag", "*", "keda/server", c.want}, cells[:6]); diff != "" {
			t.Error(diff)
		}
	}
	if n := len(d.Hub().Columns.Definitions()); n != 7 {
		t.Errorf("%d columns", n)
	}
}
