// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"testing"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

func TestSchemasAreSharedByWhatTheySay(t *testing.T) {
	set := newSchemas(0)
	compiled := func(change func(*v1.CustomResourceDefinition)) *shape {
		def := definition(t, "gadget")
		change(def)
		d, err := compileWith(def, nil, set)
		if err != nil {
			t.Fatal(err)
		}
		return versionOf(d, "v1").shape
	}
	first := compiled(func(*v1.CustomResourceDefinition) {})
	renamed := compiled(func(d *v1.CustomResourceDefinition) {
		d.Name, d.Spec.Names.Plural, d.Status.AcceptedNames.Plural = "others.dlg.example.com", "others", "others"
	})
	if first != renamed {
		t.Error("two definitions with the same schema do not share it")
	}
	changed := compiled(func(d *v1.CustomResourceDefinition) {
		for i := range d.Spec.Versions {
			d.Spec.Versions[i].Schema.OpenAPIV3Schema.Description = "another"
		}
	})
	if first == changed {
		t.Error("definitions with different schemas share one")
	}
	if set.pool.Used() != 0 {
		t.Errorf("%d bytes are compiled of schemas that nobody has used", set.pool.Used())
	}
}

// TestCompiledAgain alternates writes to two kinds with room for the compiled forms of neither.
func TestCompiledAgain(t *testing.T) {
	set := newSchemas(1)
	body := []byte(`{"apiVersion":"dlg.example.com/v1","kind":"Gadget","metadata":{"name":"g"},"spec":{"size":"none"}}`)
	var said string
	for range 3 {
		for _, text := range []string{"one", "two"} {
			def := definition(t, "gadget")
			for i := range def.Spec.Versions {
				def.Spec.Versions[i].Schema.OpenAPIV3Schema.Description = text
			}
			d, err := compileWith(def, nil, set)
			if err != nil {
				t.Fatal(err)
			}
			_, _, err = create(in("v1"), d, "v1", object(t, body))
			if err == nil {
				t.Fatal("an object with a wrong field was taken")
			}
			if said == "" {
				said = err.Error()
			}
			if err.Error() != said {
				t.Errorf("compiled again it says %q, before %q", err, said)
			}
		}
	}
}

// TestKeptDefinitionsAreSlim checks that the registry keeps no schemas.
func TestKeptDefinitionsAreSlim(t *testing.T) {
	def := definition(t, "gadget")
	def.Annotations = map[string]string{"note": "long", v1.KubeAPIApprovedAnnotation: "unapproved"}
	kept := slim(def)
	for _, v := range kept.Spec.Versions {
		if v.Schema != nil {
			t.Errorf("version %s has its schema still", v.Name)
		}
	}
	if len(kept.Annotations) != 1 || kept.Annotations[v1.KubeAPIApprovedAnnotation] == "" {
		t.Errorf("annotations are %v, want the approval alone", kept.Annotations)
	}
	if def.Spec.Versions[0].Schema == nil || len(def.Annotations) != 2 {
		t.Error("the definition itself was changed")
	}
}
