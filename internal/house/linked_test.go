// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package house

import (
	"regexp"
	"strings"
	"testing"
)

// kept are what must not stand in the program's code, since for its sake the linker keeps code of every kind in every version
// (docs/decisions, 24), with what is in its place.
var kept = []struct {
	text    *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`\bSwaggerDoc\(\) map\[string\]string`), "an interface with SwaggerDoc keeps the texts of all fields: call the method of a type"},
	{
		regexp.MustCompile(`\b(ToOpenAPIDefinitionName|NewSchemeTypeConverter|GetCanonicalTypeName|OpenAPIModelName)\(`),
		"it asks types for their names by an interface: see names in internal/apiserver/managedfields",
	},
	{regexp.MustCompile(`(^|[^A-Za-z])Informers\.ForResource\(`), "it names the informers of all kinds: see Informer in internal/controllers"},
	{regexp.MustCompile(`"k8s\.io/[a-z-]+/pkg/generated/openapi"`), "it is the texts of all fields as code: see readModels in internal/apiserver/managedfields"},
	{
		regexp.MustCompile(`"k8s\.io/client-go/applyconfigurations/|\.TypedInformer\(`),
		"make build leaves it out: see Apply in internal/controllers, and scripts/overlay/lean",
	},
	{regexp.MustCompile(`"(text|html)/template"`), "a template calls methods by names that the linker does not know: see scripts/overlay"},
}

// TestLinkedFew checks that the program's own code does not keep what it does not call.
func TestLinkedFew(t *testing.T) {
	for _, s := range tree(t) {
		d := s.dir()
		if s.isTest() || strings.HasPrefix(d, "test") || strings.HasPrefix(d, "scripts") || strings.HasPrefix(d, "bench") ||
			strings.HasPrefix(d, "examples") || strings.Contains(d+"/", "/gen/") || strings.HasPrefix(d, "internal/house") {
			continue // not in the program
		}
		for i, line := range strings.Split(string(s.text), "\n") {
			line, _, _ = strings.Cut(line, "//")
			for _, k := range kept {
				if k.text.MatchString(line) {
					t.Errorf("%s: %s: %s", s.at(i+1), k.text.FindString(line), k.instead)
				}
			}
		}
	}
	for text, want := range map[string]bool{
		"type x interface{ SwaggerDoc() map[string]string }": true, "metav1.ListOptions{}.SwaggerDoc()": false,
		`apply "k8s.io/client-go/applyconfigurations/core/v1"`: true,
		"d.Informers.ForResource(gvr)":                         true, "d.MetadataInformers.ForResource(gvr)": false, `"text/template"`: true,
		"scheme.ToOpenAPIDefinitionName(gvk)": true, `"k8s.io/kube-aggregator/pkg/generated/openapi"`: true,
	} {
		got := false
		for _, k := range kept {
			got = got || k.text.MatchString(text)
		}
		if got != want {
			t.Errorf("%s is refused: %t", text, got)
		}
	}
}
