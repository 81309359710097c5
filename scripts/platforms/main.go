// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command platforms checks that packages compile on the operating systems and processors of developers. It type-checks each package with
// everything that it imports, from source, with the function bodies of this module only: that finds what the compiler would refuse, in
// a twentieth of the compiler's time, and fills no cache.
//
//	go run ./scripts/platforms -tags grpcnotrace ./embed/embedtest
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// module is the import path of this module, whose function bodies are checked.
const module = "github.com/mortise-dev/mortise"

// platforms are what developers have.
var platforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64", "windows/arm64"}

func main() {
	tags := flag.String("tags", "", "build tags")
	only := flag.String("platforms", strings.Join(platforms, ","), "the platforms, as GOOS/GOARCH")
	flag.Parse()
	failed := false
	for p := range strings.SplitSeq(*only, ",") {
		begin := time.Now()
		count, err := check(p, *tags, flag.Args())
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", p, err)
			failed = true
			continue
		}
		fmt.Printf("%s: %d packages in %s\n", p, count, time.Since(begin).Round(100*time.Millisecond))
	}
	if failed {
		os.Exit(1)
	}
}

// pkg is what `go list` says of a package.
type pkg struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string
	Module          *struct{ Path string }
	Error           *struct{ Err string }
}

// check type-checks packages and what they import on a platform. It returns how many there are.
func check(platform, tags string, patterns []string) (int, error) {
	system, processor, ok := strings.Cut(platform, "/")
	if !ok {
		return 0, errors.New("want GOOS/GOARCH")
	}
	args := append([]string{"list", "-deps", "-json=ImportPath,Dir,GoFiles,ImportMap,Module,Error", "-tags", tags, "--"}, patterns...)
	list := exec.Command("go", args...) //nolint:gosec // the arguments are ours
	list.Env = append(os.Environ(), "GOOS="+system, "GOARCH="+processor, "CGO_ENABLED=0")
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return 0, fmt.Errorf("list packages: %w", err)
	}
	c := &checker{set: token.NewFileSet(), done: map[string]*types.Package{"unsafe": types.Unsafe}, sizes: types.SizesFor("gc", processor)}
	count := 0
	for d := json.NewDecoder(bytes.NewReader(out)); ; count++ {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return count, nil
		} else if err != nil {
			return 0, fmt.Errorf("read the list of packages: %w", err)
		}
		if p.Error != nil {
			return 0, errors.New(p.Error.Err)
		}
		if err := c.add(p); err != nil {
			return 0, err
		}
	}
}

// checker has the packages of a platform that are checked, in the order of their imports.
type checker struct {
	set   *token.FileSet
	done  map[string]*types.Package
	sizes types.Sizes
}

// add checks a package whose imports are checked.
func (c *checker) add(p pkg) error {
	if p.ImportPath == "unsafe" {
		return nil
	}
	files := make([]*ast.File, len(p.GoFiles))
	errs := make([]error, len(p.GoFiles))
	var all sync.WaitGroup
	for i, name := range p.GoFiles {
		all.Go(func() {
			mode := parser.SkipObjectResolution
			files[i], errs[i] = parser.ParseFile(c.set, filepath.Join(p.Dir, name), nil, mode)
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	var found []error
	config := types.Config{
		Importer: importer(func(path string) (*types.Package, error) {
			if to := p.ImportMap[path]; to != "" {
				path = to
			}
			if got := c.done[path]; got != nil {
				return got, nil
			}
			return nil, fmt.Errorf("%s is not listed", path)
		}),
		IgnoreFuncBodies: p.Module == nil || p.Module.Path != module, FakeImportC: true, Sizes: c.sizes,
		Error: func(err error) { found = append(found, err) },
	}
	got, _ := config.Check(p.ImportPath, c.set, files, nil) // the errors are in found
	c.done[p.ImportPath] = got
	return errors.Join(found...)
}

// importer is a function that implements [types.Importer].
type importer func(path string) (*types.Package, error)

// Import implements [types.Importer].
func (i importer) Import(path string) (*types.Package, error) { return i(path) }
