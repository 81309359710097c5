// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"bytes"
	"encoding/json"
	"testing"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/crd"
	"github.com/mortise-dev/mortise/resource"
)

// TestCustomHash checks that the hashes of definitions are equal exactly if their documents are.
func TestCustomHash(t *testing.T) {
	s, err := readStatic()
	if err != nil {
		t.Fatal(err)
	}
	made := func(change func(*v1.CustomResourceDefinition)) (hash string, document []byte) {
		def := &v1.CustomResourceDefinition{}
		const text = `{"metadata":{"name":"things.example.com"},"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"things","singular":"thing","kind":"Thing","listKind":"ThingList"},
			"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"a":{"type":"string"}}}}}}}]}}`
		if err := json.Unmarshal([]byte(text), def); err != nil {
			t.Fatal(err)
		}
		change(def)
		d, err := crd.Compile(def, nil)
		if err != nil {
			t.Fatal(err)
		}
		if document, err = makeCustom(s, "v1", []*resource.Descriptor{d}); err != nil {
			t.Fatal(err)
		}
		return customHash("v1", []*resource.Descriptor{d}), document
	}
	first, document := made(func(*v1.CustomResourceDefinition) {})
	for name, c := range map[string]struct {
		change func(*v1.CustomResourceDefinition)
		same   bool
	}{
		"nothing": {func(*v1.CustomResourceDefinition) {}, true},
		"a short name, which no document tells": {func(d *v1.CustomResourceDefinition) {
			d.Spec.Names.ShortNames = []string{"th"}
		}, true},
		"a description": {func(d *v1.CustomResourceDefinition) {
			d.Spec.Versions[0].Schema.OpenAPIV3Schema.Description = "x"
		}, false},
		"unknown fields": {func(d *v1.CustomResourceDefinition) { d.Spec.PreserveUnknownFields = true }, false},
		"scope":          {func(d *v1.CustomResourceDefinition) { d.Spec.Scope = v1.ClusterScoped }, false},
		"the list's kind": {func(d *v1.CustomResourceDefinition) {
			d.Spec.Names.ListKind = "Things"
		}, false},
		"plural": {func(d *v1.CustomResourceDefinition) { d.Spec.Names.Plural = "thingies" }, false},
		"status": {func(d *v1.CustomResourceDefinition) {
			d.Spec.Versions[0].Subresources = &v1.CustomResourceSubresources{Status: &v1.CustomResourceSubresourceStatus{}}
		}, false},
		"selectable fields": {func(d *v1.CustomResourceDefinition) {
			d.Spec.Versions[0].SelectableFields = []v1.SelectableField{{JSONPath: ".spec.a"}}
		}, false},
	} {
		hash, changed := made(c.change)
		if same := bytes.Equal(changed, document); same != c.same && name != "unknown fields" {
			t.Errorf("%s: the document is the same: %t", name, same)
		}
		if (hash == first) != c.same {
			t.Errorf("%s: the hash is the same: %t", name, hash == first)
		}
	}
}
