// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// pkg is what `go list` says of a package, and the export data of all that it imports.
type pkg struct {
	ImportPath, Dir, Name, Export string
	GoFiles                       []string
	TestGoFiles, XTestGoFiles     []string
	DepOnly                       bool
	Module                        struct{ Dir string }

	exports map[string]string
	far     bool // its tests run where they are: they build programs, and another folder would compile the module anew
}

// loaded are the packages that were asked for.
type loaded struct{ wanted []*pkg }

// load lists packages and compiles what they import.
func load(ctx context.Context, tags string, patterns []string) (loaded, error) {
	if len(patterns) == 0 {
		return loaded{}, nil
	}
	list := exec.CommandContext(ctx, "go", append([]string{"list", "-tags", tags, "-export", "-deps",
		"-json=ImportPath,Dir,Name,Export,GoFiles,TestGoFiles,XTestGoFiles,DepOnly,Module"}, patterns...)...)
	list.Stderr = os.Stderr
	said, err := list.Output()
	if err != nil {
		return loaded{}, fmt.Errorf("list %s: %w", strings.Join(patterns, " "), err)
	}
	var out loaded
	exports := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(said)); ; {
		p := &pkg{exports: exports}
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return loaded{}, err
		}
		exports[p.ImportPath] = p.Export
		if !p.DepOnly {
			out.wanted = append(out.wanted, p)
		}
	}
}

// source is a file of the package, with its text.
type source struct {
	path  string
	text  []byte
	file  *ast.File
	edits []edit
}

// mutants parses and type-checks the package and finds all its mutants, numbered from 1 in the order of the sources.
func (p *pkg) mutants() ([]*mutant, []*source, error) {
	set := token.NewFileSet()
	var files []*source
	var syntax []*ast.File
	for _, name := range p.GoFiles {
		s := &source{path: filepath.Join(p.Dir, name)}
		var err error
		if s.text, err = os.ReadFile(s.path); err != nil {
			return nil, nil, err
		}
		if s.file, err = parser.ParseFile(set, s.path, s.text, parser.SkipObjectResolution); err != nil {
			return nil, nil, err
		}
		syntax = append(syntax, s.file)
		if !strings.HasPrefix(name, "z_") {
			files = append(files, s)
		}
	}
	config := types.Config{Importer: importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(p.exports[path])
	})}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{}}
	checked, err := config.Check(p.ImportPath, set, syntax, info)
	if err != nil {
		return nil, nil, err
	}
	f := finder{set: set, pkg: checked, info: info, home: p.Dir}
	for _, s := range files {
		f.find(s)
	}
	return f.mutants, files, nil
}
