// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package house

import (
	"go/ast"
	"path"
	"testing"
)

const (
	maxFields  = 20
	maxMethods = 25
)

// smallRooms are folders whose types have at most so many fields and methods: what knows everything can be changed by nobody.
var smallRooms = []string{
	"embed", "internal/cluster", "internal/node", "internal/lifecycle", "internal/agent/containerhooks", "internal/agent/eviction",
	"internal/agent/nodestatus", "internal/agent/pleg", "internal/agent/plugins", "internal/agent/podadmission", "internal/agent/podgc",
	"internal/agent/podkiller", "internal/agent/podresize", "internal/agent/podstreams", "internal/agent/podworkers",
	"internal/agent/static", "internal/agent/volumes",
}

func TestTypesAreSmall(t *testing.T) {
	methods := map[string]int{} // by folder and type
	for _, s := range tree(t) {
		small := false
		for _, r := range smallRooms {
			small = small || below(s.dir(), r)
		}
		if !small || s.isTest() {
			continue
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if name := receiver(d); name != "" {
					methods[path.Join(s.dir(), name)]++
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if of, ok := spec.(*ast.TypeSpec); ok && fields(of) > maxFields {
						t.Errorf("%s:%d: %s has %d fields, want at most %d: make structs of those that belong together",
							s.path, s.line(of), of.Name, fields(of), maxFields)
					}
				}
			}
		}
	}
	for name, n := range methods {
		if n > maxMethods {
			t.Errorf("%s has %d methods, want at most %d: split it by responsibility", name, n, maxMethods)
		}
	}
}

// receiver is the name of the type whose method d is.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	of := d.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if generic, ok := of.(*ast.IndexExpr); ok {
		of = generic.X
	}
	if id, ok := of.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}

// fields counts those of a struct.
func fields(of *ast.TypeSpec) (n int) {
	s, ok := of.Type.(*ast.StructType)
	if !ok {
		return 0
	}
	for _, f := range s.Fields.List {
		n += max(1, len(f.Names))
	}
	return n
}
