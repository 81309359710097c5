// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package house

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/api.txt")

// public are the folders whose packages other modules import. Their names must not change by accident.
var public = []string{"embed", "extension", "resource", "store"}

// TestPublicAPI compares what the public packages export with the committed list. A line that goes away breaks a program of someone else.
func TestPublicAPI(t *testing.T) {
	var b strings.Builder
	for _, root := range public {
		err := filepath.WalkDir(filepath.Join("..", "..", root), func(dir string, e fs.DirEntry, err error) error {
			if err != nil || !e.IsDir() {
				return err
			}
			if e.Name() == "testdata" || e.Name() == "internal" {
				return fs.SkipDir
			}
			return exported(&b, dir)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	const file = "testdata/api.txt"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	has, had := strings.Split(b.String(), "\n"), strings.Split(string(want), "\n")
	for _, line := range had {
		if !slices.Contains(has, line) {
			t.Errorf("no longer exported: %s", line)
		}
	}
	for _, line := range has {
		if !slices.Contains(had, line) {
			t.Errorf("exported and not listed: %s", line)
		}
	}
	if t.Failed() {
		t.Log("if this is meant: go test -tags grpcnotrace ./internal/house -run TestPublicAPI -update, and a fragment in docs/changes")
	}
}

// TestStabilityIsStated: the comment of each public package says under "Stability" what may change.
func TestStabilityIsStated(t *testing.T) {
	stated := map[string]bool{}
	for _, s := range tree(t) {
		top, _, _ := strings.Cut(s.dir(), "/")
		if s.isTest() || !slices.Contains(public, top) || strings.Contains(s.dir(), "/internal") {
			continue
		}
		comment := s.file.Doc
		stated[s.dir()] = stated[s.dir()] || comment != nil && strings.Contains(comment.Text(), "\n# Stability\n")
	}
	if len(stated) < 20 {
		t.Fatalf("found %d public packages", len(stated))
	}
	for dir, ok := range stated {
		if !ok {
			t.Errorf("%s: the package's comment has no section \"# Stability\"", dir)
		}
	}
}

// TestContractsHaveExamples: each package that owns a contract of extensions in Go has an example that runs: one with an output.
func TestContractsHaveExamples(t *testing.T) {
	for _, name := range []string{"admission", "authenticator", "authorizer", "controller", "scheduler"} {
		file := filepath.Join("..", "..", "extension", name, "example_test.go")
		text, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
			continue
		}
		if !strings.Contains(string(text), "\nfunc Example") || !strings.Contains(string(text), "\n\t// Output:") {
			t.Errorf("%s has no example with an output", file)
		}
	}
}

// exported writes the exported declarations of the package in a folder, one a line, sorted.
func exported(b *strings.Builder, dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return err
	}
	var lines []string
	name := strings.TrimPrefix(filepath.ToSlash(dir), "../../")
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if f.Name.Name == "main" {
			continue
		}
		for _, d := range f.Decls {
			for _, line := range declared(set, d) {
				lines = append(lines, fmt.Sprintf("%s: %s", name, line))
			}
		}
	}
	slices.Sort(lines)
	for _, line := range slices.Compact(lines) { // a name may be declared for each operating system
		fmt.Fprintln(b, line)
	}
	return nil
}

// declared returns the exported names that a declaration declares, with their types.
func declared(set *token.FileSet, d ast.Decl) (lines []string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if !d.Name.IsExported() || d.Recv != nil && !ast.IsExported(receiverName(d.Recv.List[0].Type)) {
			return nil
		}
		d.Body, d.Doc = nil, nil
		return []string{text(set, d)}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() {
					lines = append(lines, typed(set, s)...)
				}
			case *ast.ValueSpec:
				for _, n := range s.Names {
					if n.IsExported() {
						kind := ""
						if s.Type != nil {
							kind = " " + text(set, s.Type)
						}
						lines = append(lines, d.Tok.String()+" "+n.Name+kind)
					}
				}
			}
		}
	}
	return lines
}

// typed returns the lines of a type: one for itself, and one for each exported field or method.
func typed(set *token.FileSet, s *ast.TypeSpec) []string {
	var members *ast.FieldList
	kind := "type " + s.Name.Name
	switch of := s.Type.(type) {
	case *ast.StructType:
		members, kind = of.Fields, kind+" struct"
	case *ast.InterfaceType:
		members, kind = of.Methods, kind+" interface"
	default:
		equals := " "
		if s.Assign.IsValid() {
			equals = " = "
		}
		return []string{kind + equals + text(set, s.Type)}
	}
	lines := []string{kind}
	for _, m := range members.List {
		of := text(set, m.Type)
		if len(m.Names) == 0 {
			lines = append(lines, kind+", "+of)
		}
		for _, n := range m.Names {
			if n.IsExported() {
				lines = append(lines, kind+", "+n.Name+" "+of)
			}
		}
	}
	return lines
}

// receiverName returns the name of a receiver's type.
func receiverName(of ast.Expr) string {
	switch of := of.(type) {
	case *ast.StarExpr:
		return receiverName(of.X)
	case *ast.IndexExpr:
		return receiverName(of.X)
	case *ast.IndexListExpr:
		return receiverName(of.X)
	case *ast.Ident:
		return of.Name
	}
	return ""
}

// text prints a node in one line.
func text(set *token.FileSet, n any) string {
	var b bytes.Buffer
	if err := printer.Fprint(&b, set, n); err != nil {
		return err.Error()
	}
	return strings.Join(strings.Fields(b.String()), " ")
}
