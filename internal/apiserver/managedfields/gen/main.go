// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Gen writes z_shapes.json.gz and z_definitions.json.gz: the schemas of the built-in kinds and of CustomResourceDefinition, which the
// client-go and apiextensions-apiserver modules carry as YAML in a Go string, in the form that package managedfields reads (its type shape,
// which the types here must match). And z_models.json: the OpenAPI models of metadata, Scale and APIService, which the modules have as Go
// code.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	aggregatoropenapi "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	for file, source := range map[string][2]string{
		"z_shapes.json.gz":      {"k8s.io/client-go", "applyconfigurations/internal/internal.go"},
		"z_definitions.json.gz": {"k8s.io/apiextensions-apiserver", "pkg/client/applyconfiguration/internal/internal.go"},
	} {
		if err := writeShapes(file, source[0], source[1]); err != nil {
			return fmt.Errorf("make %s: %w", file, err)
		}
	}
	b, err := json.Marshal(models())
	if err != nil {
		return err
	}
	return os.WriteFile("z_models.json", b, 0o644)
}

// models returns the models that package managedfields has a use for.
func models() map[string]spec.Schema {
	const meta = "io.k8s.apimachinery.pkg.apis.meta.v1."
	out := map[string]spec.Schema{}
	for _, definitions := range []common.GetOpenAPIDefinitions{openapi.GetOpenAPIDefinitions, aggregatoropenapi.GetOpenAPIDefinitions} {
		for name, d := range definitions(func(path string) spec.Ref { return spec.MustCreateRef("#/components/schemas/" + path) }) {
			switch short, ok := strings.CutPrefix(name, meta); {
			case !ok:
				if !strings.HasPrefix(name, "io.k8s.api.autoscaling.v1.Scale") &&
					!strings.HasPrefix(name, "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1.") || strings.HasSuffix(name, ".APIServiceList") {
					continue
				}
			case !slices.Contains([]string{"ObjectMeta", "OwnerReference", "ManagedFieldsEntry", "FieldsV1", "Time"}, short):
				continue
			}
			out[name] = d.Schema
		}
	}
	return out
}

// writeShapes writes the schemas in a source file of a module.
func writeShapes(to, module, source string) error {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return fmt.Errorf("find module: %w", err)
	}
	yaml, err := schemaYAML(filepath.Join(strings.TrimSpace(string(out)), filepath.FromSlash(source)))
	if err != nil {
		return err
	}
	p, err := typed.NewParser(typed.YAMLObject(yaml))
	if err != nil {
		return fmt.Errorf("parse shapes: %w", err)
	}
	var all []map[string]any
	for _, t := range p.Schema.Types {
		all = append(all, map[string]any{"n": t.Name, "a": atom(t.Atom)})
	}
	b, err := json.Marshal(all)
	if err != nil {
		return err
	}
	var z bytes.Buffer
	w, err := gzip.NewWriterLevel(&z, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := w.Write(b); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(to, z.Bytes(), 0o644)
}

// schemaYAML finds the YAML string in the Go source file.
func schemaYAML(file string) (string, error) {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		return "", fmt.Errorf("parse source: %w", err)
	}
	var found string
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && v.Names[0].Name == "schemaYAML" {
			ast.Inspect(v, func(n ast.Node) bool {
				if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
					if s, err := strconv.Unquote(l.Value); err == nil {
						found += s
					}
				}
				return true
			})
		}
		return true
	})
	if found == "" {
		return "", fmt.Errorf("no schema in %s", file)
	}
	return found, nil
}

func atom(a schema.Atom) map[string]any {
	out := map[string]any{}
	if a.Scalar != nil {
		out["s"] = *a.Scalar
	}
	if l := a.List; l != nil {
		m := map[string]any{"e": ref(l.ElementType)}
		put(m, "r", string(l.ElementRelationship))
		if len(l.Keys) > 0 {
			m["k"] = l.Keys
		}
		out["l"] = m
	}
	if o := a.Map; o != nil {
		m := map[string]any{"e": ref(o.ElementType)}
		put(m, "r", string(o.ElementRelationship))
		var fields []map[string]any
		for _, f := range o.Fields {
			field := map[string]any{"n": f.Name, "t": ref(f.Type)}
			if f.Default != nil {
				field["d"] = plain(f.Default)
			}
			fields = append(fields, field)
		}
		if fields != nil {
			m["f"] = fields
		}
		if len(o.Unions) > 0 {
			m["u"] = o.Unions
		}
		out["m"] = m
	}
	return out
}

func ref(r schema.TypeRef) map[string]any {
	out := map[string]any{}
	if r.NamedType != nil {
		out["n"] = *r.NamedType
	}
	if a := atom(r.Inlined); len(a) > 0 {
		out["i"] = a
	}
	if r.ElementRelationship != nil {
		out["r"] = *r.ElementRelationship
	}
	if r.Nullable {
		out["z"] = true
	}
	return out
}

func put(m map[string]any, key, value string) {
	if value != "" {
		m[key] = value
	}
}

// plain converts values that YAML decoded to values that JSON can encode.
func plain(v any) any {
	switch v := v.(type) {
	case map[any]any:
		out := map[string]any{}
		for k, x := range v {
			out[fmt.Sprint(k)] = plain(x)
		}
		return out
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	}
	return v
}
