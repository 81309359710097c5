// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package consoleextension

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// TestExtensionsAreChecked validates extensions with one error each.
func TestExtensionsAreChecked(t *testing.T) {
	d, err := Kind()
	if err != nil {
		t.Fatal(err)
	}
	link := func(url string) string {
		return `{resource: {resource: pods}, links: [{title: a, url: "` + url + `"}]}`
	}
	column := func(path string) string {
		return `{resource: {group: example.com, resource: widgets}, columns: [{name: A, type: string, jsonPath: "` + path + `"}]}`
	}
	for _, c := range []struct{ spec, want string }{
		{link("https://grafana.example.com/d/app?var-ns={.metadata.namespace}&pod={.metadata.name}"), ""},
		{link("http://localhost:3000?pod={.metadata.labels['app.kubernetes.io/name']}"), ""},
		{link("https://example.com#{.metadata.name}"), ""},
		{`{links: [{title: docs, url: "https://example.com/docs"}]}`, ""},
		{column(".spec.replicas"), ""},
		{column(".status.conditions[?(@.type=='Ready')].status"), ""},
		{`{}`, "spec: Required value: must have links or columns"},
		{`{links: [{title: docs, url: "https://example.com/{.metadata.name}"}]}`, "spec.links[0].url: Invalid value"},
		{`{columns: [{name: A, type: string, jsonPath: .a}]}`, "spec.resource: Required value: columns are those of a resource"},
		{link("javascript:alert(1)"), "spec.links[0].url: Invalid value"},
		{link("JavaScript://example.com/%0aalert(1)"), "spec.links[0].url: Invalid value"},
		{link("data:text/html,x"), "spec.links[0].url: Invalid value"},
		{link("//example.com/"), "spec.links[0].url: Invalid value"},
		{link("/console/"), "spec.links[0].url: Invalid value"},
		{link("https:///x"), "spec.links[0].url: Invalid value"},
		{link("https://{.metadata.name}/x"), "spec.links[0].url: Invalid value"},
		{link("https://a{.metadata.name}.example.com/x"), "spec.links[0].url: Invalid value"},
		{link("{.metadata.name}"), "spec.links[0].url: Invalid value"},
		{link("https://user@example.com/"), "spec.links[0].url: Invalid value"},
		{link("https://example.com/{.metadata"), "spec.links[0].url: Invalid value"},
		{link("https://example.com/{metadata}"), "spec.links[0].url: Invalid value"},
		{link("https://example.com/{.a[}"), "spec.links[0].url: Invalid value"},
		{link("https://example.com/ x"), "spec.links[0].url: Invalid value"},
		{link(`https://example.com\\@evil.example/`), "spec.links[0].url: Invalid value"},
		{column("spec.replicas"), "spec.columns[0].jsonPath: Invalid value"},
		{column(".a}{.b"), "spec.columns[0].jsonPath: Invalid value"},
		{column(".a["), "spec.columns[0].jsonPath: Invalid value"},
		{`{resource: {resource: pods}, columns: [{name: A, type: code, jsonPath: .a}]}`, "spec.columns[0].type: Unsupported value"},
	} {
		u := &unstructured.Unstructured{}
		text := "apiVersion: extension.mortise.dev/v1alpha1\nkind: ConsoleExtension\nmetadata: {name: e, uid: u}\nspec: " + c.spec
		if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
			t.Fatalf("%s: %v", c.spec, err)
		}
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

// FuzzURL parses templates of URLs. An accepted one names its host before any part of the object.
func FuzzURL(f *testing.F) {
	for _, s := range []string{"https://example.com/{.a}", "http://a?{.b}", "https://{.a}", "{", "}", "https://a/{", "javascript:x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if checkURL(s, true) != nil {
			return
		}
		if !strings.HasPrefix(strings.ToLower(s), "http://") && !strings.HasPrefix(strings.ToLower(s), "https://") {
			t.Errorf("%q is accepted", s)
		}
		if host, _, found := strings.Cut(s, "{"); found && !strings.ContainsAny(hostAndMore(host), "/?#") {
			t.Errorf("%q is accepted: the object chooses the host", s)
		}
	})
}
