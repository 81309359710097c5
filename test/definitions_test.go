// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/embed/embedtest"
)

// published are projects that ship their definitions as files in a Go module, and where.
func published() []struct{ module, sum, files string } {
	return []struct{ module, sum, files string }{
		{"github.com/cert-manager/cert-manager@v1.21.2", "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68=", "deploy/crds/*.yaml"},
		{"sigs.k8s.io/gateway-api@v1.6.3", "h1:lKpJa5bGlraC/QeACvCpsHLdmO6y0iKfzVl6gzaFEYc=", "config/crd/experimental/*.yaml"},
		{"github.com/argoproj/argo-cd/v2@v2.14.21", "h1:Ux50vfMUITW+Y+6GAYgQlZbr6WHE5ogiLg9OxxvP9EA=", "manifests/crds/*.yaml"},
		{"github.com/prometheus-operator/prometheus-operator@v0.85.0", "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
			"example/prometheus-operator-crd-full/*.yaml"},
		{"istio.io/api@v1.31.1", "h1:5Yb5ihcz4YQsCkciusK7DnFpBMwRB6EFWeUKH1Atuyk=", "kubernetes/customresourcedefinitions.gen.yaml"},
		{"knative.dev/serving@v0.51.0", "h1:yN2Q7eYqJgoPfZkATjoBZyGbZ2P1Qhns9HIMU4mF+to=", "config/core/300-resources/*.yaml"},
		{"sigs.k8s.io/cluster-api@v1.14.2", "h1:o3GFNaeNFAOEEMpDPfhCK+2CjmV6gtQ8yLEcUwCg7bA=", "*/config/crd/bases/*.yaml"},
		{"sigs.k8s.io/cluster-api@v1.14.2", "h1:o3GFNaeNFAOEEMpDPfhCK+2CjmV6gtQ8yLEcUwCg7bA=", "*/kubeadm/config/crd/bases/*.yaml"},
		{"github.com/crossplane-contrib/provider-kubernetes@v1.3.0", "h1:KyFwivTs5r7USX/X+hx+rjg+k82ndY47FIn3UkgyCho=", "package/crds/*.yaml"},
	}
}

// shipped returns the definitions in a module's files, which the module proxy gives.
func shipped(t *testing.T, module, sum, files string) (defs []*apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	get := exec.Command("go", "mod", "download", "-json", module)
	get.Dir = t.TempDir() // outside of this module, whose dependency it is not
	out, err := get.Output()
	if err != nil {
		t.Fatalf("download %s: %v: %s", module, err, out)
	}
	var m struct{ Dir, Sum string }
	if err := json.Unmarshal(out, &m); err != nil || m.Sum != sum {
		t.Fatalf("download %s: sum %s, want %s (%v)", module, m.Sum, sum, err)
	}
	names, err := filepath.Glob(filepath.Join(m.Dir, files))
	if err != nil || len(names) == 0 {
		t.Fatalf("%s has no %s: %v", module, files, err)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		docs := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
		for {
			def := &apiextensionsv1.CustomResourceDefinition{}
			if err := docs.Decode(def); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if def.Kind == "CustomResourceDefinition" {
				defs = append(defs, def)
			}
		}
	}
	return defs
}

// TestPublishedDefinitions creates every definition that well-known projects publish, and of each a good and a bad object.
func TestPublishedDefinitions(t *testing.T) {
	if testing.Short() {
		t.Skip("downloads 60 MB of modules")
	}
	cluster := embedtest.New(t)
	ctx := t.Context()
	config := cluster.Config()
	config.WarningHandler = rest.NoWarnings{} // many versions are deprecated
	d := dynamic.NewForConfigOrDie(config)
	crds := d.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	for _, p := range published() {
		counts := map[string]int{}
		for _, def := range shipped(t, p.module, p.sum, p.files) {
			def.Spec.Conversion = nil // its webhook does not run here
			u := asUnstructured(t, def)
			_, err := crds.Create(ctx, u, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				continue // published twice
			}
			if err != nil {
				t.Errorf("%s: %s is refused: %v", p.module, def.Name, err)
				continue
			}
			if now, err := crds.Get(ctx, def.Name, metav1.GetOptions{}); err != nil || !established(now) {
				t.Errorf("%s: %s is not established when its create has returned", p.module, def.Name)
			}
			counts["definitions"]++
			for _, v := range def.Spec.Versions {
				if v.Served {
					counts[tryInstance(t, ctx, d, def, &v)]++
					counts["versions"]++
				}
			}
		}
		t.Logf("%s: %d definitions in %d versions accepted; of a least object of each version %d are accepted, and %d refused for a rule; the bad object of each is refused",
			p.module, counts["definitions"], counts["versions"], counts["accepted"], counts["refused"])
		if counts["accepted"] == 0 {
			t.Errorf("%s: no object was accepted", p.module)
		}
	}
}

func asUnstructured(t *testing.T, def *apiextensionsv1.CustomResourceDefinition) *unstructured.Unstructured {
	t.Helper()
	b, err := json.Marshal(def)
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(b); err != nil {
		t.Fatal(err)
	}
	unstructured.RemoveNestedField(u.Object, "status")
	return u
}

func established(u *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(c any) bool {
		m := c.(map[string]any)
		return m["type"] == "Established" && m["status"] == "True"
	})
}

// tryInstance creates the least object that a version's schema asks for, reads it in all ways, and wants one with a value of
// the wrong type refused. It reports whether the least object was accepted, or refused by one of the rules that no generator
// knows how to meet: a CEL rule, a pattern, a combination.
func tryInstance(t *testing.T, ctx context.Context, d dynamic.Interface, def *apiextensionsv1.CustomResourceDefinition,
	v *apiextensionsv1.CustomResourceDefinitionVersion) string {
	t.Helper()
	resource := d.Resource(schema.GroupVersionResource{Group: def.Spec.Group, Version: v.Name, Resource: def.Spec.Names.Plural})
	var client dynamic.ResourceInterface = resource
	if def.Spec.Scope == apiextensionsv1.NamespaceScoped {
		client = resource.Namespace("default")
	}
	root := v.Schema.OpenAPIV3Schema
	object := func() *unstructured.Unstructured {
		content, _ := least(root).(map[string]any)
		u := &unstructured.Unstructured{Object: content}
		if u.Object == nil {
			u.Object = map[string]any{}
		}
		delete(u.Object, "status")
		u.SetAPIVersion(def.Spec.Group + "/" + v.Name)
		u.SetKind(def.Spec.Names.Kind)
		u.Object["metadata"] = map[string]any{"name": "least"}
		return u
	}
	name := def.Name + "/" + v.Name

	spec := root.Properties["spec"]
	for field, s := range spec.Properties {
		wrong := any("text")
		if s.Type == "string" {
			wrong = map[string]any{"a": "map"}
		}
		if s.Type == "" || s.XIntOrString {
			continue
		}
		bad := object()
		if err := unstructured.SetNestedField(bad.Object, wrong, "spec", field); err != nil {
			break // its spec is no map
		}
		if _, err := client.Create(ctx, bad, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec."+field) {
			t.Errorf("%s: %v in spec.%s: %v", name, wrong, field, err)
		}
		break
	}

	made, err := client.Create(ctx, object(), metav1.CreateOptions{})
	if apierrors.IsInvalid(err) {
		for _, cause := range err.(apierrors.APIStatus).Status().Details.Causes {
			if cause.Type == metav1.CauseTypeFieldValueRequired || cause.Type == metav1.CauseTypeTypeInvalid {
				t.Errorf("%s: the least object: %v", name, err)
			}
		}
		return "refused"
	}
	if err != nil {
		t.Errorf("%s: the least object: %v", name, err)
		return "failed"
	}
	got, err := client.Get(ctx, "least", metav1.GetOptions{})
	if err != nil || got.GetUID() != made.GetUID() {
		t.Errorf("%s: get: %v", name, err)
	}
	if l, err := client.List(ctx, metav1.ListOptions{}); err != nil || len(l.Items) != 1 {
		t.Errorf("%s: list: %v", name, err)
	}
	if got, err = client.Update(ctx, got, metav1.UpdateOptions{}); err != nil { // stores what defaults of the status add when it is read
		t.Errorf("%s: update: %v", name, err)
		return "failed"
	}
	again, err := client.Update(ctx, got, metav1.UpdateOptions{})
	// In another version than the stored one, each write may be a change, in kube-apiserver as well: its defaults are not stored.
	if err != nil || v.Storage && again.GetResourceVersion() != got.GetResourceVersion() {
		t.Errorf("%s: an update that changes nothing: %v", name, err)
	}
	if err := client.Delete(ctx, "least", metav1.DeleteOptions{}); err != nil {
		t.Errorf("%s: delete: %v", name, err)
	}
	return "accepted"
}

// least is the least value that a schema takes, as far as its plain words tell; nil where it asks for nothing.
func least(s *apiextensionsv1.JSONSchemaProps) any {
	if len(s.Enum) > 0 {
		var v any
		_ = json.Unmarshal(s.Enum[0].Raw, &v)
		if f, ok := v.(float64); ok && f == float64(int64(f)) {
			return int64(f)
		}
		return v
	}
	switch s.Type {
	case "object":
		out := map[string]any{}
		if s.XEmbeddedResource {
			out = map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "embedded"}}
		}
		for _, name := range s.Required {
			p := s.Properties[name]
			if p.Default == nil {
				out[name] = least(&p)
			}
		}
		if s.MinProperties != nil {
			for name, p := range s.Properties {
				if int64(len(out)) < *s.MinProperties && p.Default == nil {
					out[name] = least(&p)
				}
			}
			if a := s.AdditionalProperties; a != nil && a.Schema != nil && int64(len(out)) < *s.MinProperties {
				out["a"] = least(a.Schema)
			}
		}
		return out
	case "array":
		out := []any{}
		for i := int64(0); s.MinItems != nil && i < *s.MinItems && s.Items != nil; i++ {
			out = append(out, least(s.Items.Schema))
		}
		return out
	case "integer", "number":
		n := int64(0)
		if s.Minimum != nil {
			n = int64(*s.Minimum)
		}
		return n
	case "boolean":
		return false
	case "string":
		return leastText(s)
	}
	if s.XIntOrString {
		return int64(1)
	}
	return map[string]any{}
}

// leastText tries texts of usual forms.
func leastText(s *apiextensionsv1.JSONSchemaProps) string {
	pattern, err := regexp.Compile(s.Pattern)
	for _, text := range []string{
		"a", "1", "1s", "1m", "A", "v1", "1.2.3", "v1.2.3", "10.0.0.1", "10.0.0.0/8", "a.example.com", "https://example.com", "example.com/a",
		"100Mi", "YQ==",
		"2006-01-02T15:04:05Z", "a=b", "#abcdef", "@every 1m", strings.Repeat("a", 16), strings.Repeat("a", 32), strings.Repeat("0", 64),
	} {
		if err == nil && pattern.MatchString(text) && formatted(s.Format, text) &&
			int64(len(text)) >= *cmp.Or(s.MinLength, new(int64)) && (s.MaxLength == nil || int64(len(text)) <= *s.MaxLength) {
			return text
		}
	}
	return ""
}

func formatted(format, text string) bool {
	switch format {
	case "date-time":
		return strings.Contains(text, "T") && strings.HasSuffix(text, "Z")
	case "duration":
		return text == "1s"
	case "uri":
		return strings.HasPrefix(text, "https:")
	case "byte":
		return text == "YQ=="
	case "cidr":
		return strings.Contains(text, "/8")
	case "ipv4", "ip":
		return text == "10.0.0.1"
	}
	return true
}
