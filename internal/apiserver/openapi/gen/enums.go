// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/kube-openapi/pkg/validation/spec"
)

// enum is the information in the Go source of the definitions about a field with an enumerated string type.
type enum struct {
	description string // with a line for each value
	values      []any
}

// enums has the enumerations of all models, by model and then by field. The key of a list field has the suffix "[]",
// that of a map field "{}". The documents in the module were made without enumerations.
type enums map[string]map[string]enum

// readEnums parses the generated Go source of the definitions. Its functions are named after models:
// schema_k8sio_api_core_v1_Probe makes io.k8s.api.core.v1.Probe.
func readEnums(module string) (enums, error) {
	file := filepath.Join(module, "pkg", "generated", "openapi", "zz_generated.openapi.go")
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", file, err)
	}
	all := enums{}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || !strings.HasPrefix(fn.Name.Name, "schema_") {
			continue
		}
		found := map[string]enum{}
		ast.Inspect(fn, func(n ast.Node) bool {
			kv, ok := n.(*ast.KeyValueExpr)
			if !ok || name(kv.Key) != "Properties" {
				return true
			}
			for _, e := range kv.Value.(*ast.CompositeLit).Elts {
				p := e.(*ast.KeyValueExpr)
				field, err := strconv.Unquote(p.Key.(*ast.BasicLit).Value)
				if err == nil {
					collect(field, p.Value, found)
				}
			}
			return false
		})
		if len(found) > 0 {
			all[strings.TrimPrefix(fn.Name.Name, "schema_")] = found
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no enumerations", file)
	}
	return all, nil
}

// collect finds the enumerations of a field and of its list or map elements.
func collect(field string, n ast.Node, found map[string]enum) {
	ast.Inspect(n, func(n ast.Node) bool {
		lit, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		var e enum
		for _, el := range lit.Elts {
			kv, ok := el.(*ast.KeyValueExpr)
			if !ok {
				continue
			}
			switch name(kv.Key) {
			case "Description":
				e.description = text(kv.Value)
			case "Enum":
				for _, v := range kv.Value.(*ast.CompositeLit).Elts {
					e.values = append(e.values, text(v))
				}
			case "Items":
				collect(field+"[]", kv.Value, found)
			case "AdditionalProperties":
				collect(field+"{}", kv.Value, found)
			}
		}
		if e.values != nil {
			found[field] = e
			return false
		}
		return lit.Type == nil || name(lit.Type) != "SchemaProps"
	})
}

func name(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

func text(e ast.Expr) string {
	l, ok := e.(*ast.BasicLit)
	if !ok {
		return ""
	}
	s, err := strconv.Unquote(l.Value)
	if err != nil {
		return ""
	}
	return s
}

// add adds the enumerations to a model's schema.
func (es enums) add(model string, s *spec.Schema) {
	for field, e := range es[function(model)] {
		bare := strings.TrimRight(field, "[]{}")
		p, ok := s.Properties[bare]
		if !ok {
			continue
		}
		at := &p
		for rest := field[len(bare):]; rest != ""; rest = rest[2:] {
			if rest[:2] == "[]" {
				at = at.Items.Schema
			} else {
				at = at.AdditionalProperties.Schema
			}
		}
		if at.Enum = e.values; e.description != "" {
			at.Description = e.description
		}
		s.Properties[bare] = p
	}
}

// function returns the name of the Go function that makes a model.
func function(model string) string {
	i := strings.LastIndexByte(model, '.')
	path := strings.ReplaceAll(model[:i], ".", "_")
	for from, to := range map[string]string{
		"io_k8s_api_":                         "k8sio_api_",
		"io_k8s_apiextensions-apiserver_pkg_": "pkg_",
		"io_k8s_apimachinery_pkg_":            "pkg_",
		"io_k8s_kube-aggregator_pkg_":         "pkg_",
	} {
		if rest, ok := strings.CutPrefix(path, from); ok {
			path = to + rest
			break
		}
	}
	return path + "_" + model[i+1:]
}
