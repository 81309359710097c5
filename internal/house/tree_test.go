// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package house

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// module is the import path of this module.
const module = "github.com/mortise-dev/mortise"

// source is one Go file of the tree.
type source struct {
	path string // from the module's root, with slashes
	text []byte
	file *ast.File
	set  *token.FileSet
}

func (s source) dir() string     { return path.Dir(s.path) }
func (s source) isTest() bool    { return strings.HasSuffix(s.path, "_test.go") }
func (s source) generated() bool { return strings.HasPrefix(path.Base(s.path), "z_") }
func (s source) lines() int      { return bytes.Count(s.text, []byte("\n")) }
func (s source) line(n ast.Node) int {
	return s.set.Position(n.Pos()).Line
}

func (s source) at(line int) string { return fmt.Sprintf("%s:%d", s.path, line) }

// parseFunction parses the one function of a text.
func parseFunction(t *testing.T, text string) *ast.FuncDecl {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\n"+text+"\n", 0)
	if err != nil {
		t.Fatal(err)
	}
	return file.Decls[0].(*ast.FuncDecl) //nolint:forcetypeassert // the texts are this package's own
}

// imports are the file's import paths.
func (s source) imports() []string {
	var out []string
	for _, i := range s.file.Imports {
		out = append(out, strings.Trim(i.Path.Value, `"`))
	}
	return out
}

// tree returns every Go file of the module, tools and scratch folders left out. The rules read the files that it parsed once.
func tree(t *testing.T) []source {
	t.Helper()
	all, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("found only %d Go files", len(all))
	}
	return all
}

var parsed = sync.OnceValues(func() ([]source, error) {
	root := filepath.Join("..", "..")
	set := token.NewFileSet()
	var out []source
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); p != root && (strings.HasPrefix(n, ".") || n == "testdata" || n == "bin" || n == "tools" || n == "zz") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(set, p, text, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		out = append(out, source{path: filepath.ToSlash(rel), text: text, file: file, set: set})
		return nil
	})
	return out, err
})
