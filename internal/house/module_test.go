// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package house

import (
	"archive/zip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// imports is a test as one writes it in a module of one's own.
const imports = `package mine

import (
	"testing"

	"github.com/mortise-dev/mortise/embed/embedtest"
)

func TestMine(t *testing.T) { embedtest.New(t) }
`

// TestModuleIsGot: `go get` in an empty module, without a replace directive, gets this tree as a module, and then go finds each package
// and each embedded file that a test with embedtest needs. The test puts this tree into a folder, which go asks first as a module proxy. Go
// takes other modules from the machine's module cache. It downloads those that the cache lacks from the usual proxy.
func TestModuleIsGot(t *testing.T) {
	cache, usual := strings.TrimSpace(run(t, ".", nil, "go", "env", "GOMODCACHE")), strings.TrimSpace(run(t, ".", nil, "go", "env", "GOPROXY"))
	version := fmt.Sprintf("v0.0.0-test.%d", os.Getpid()) // of this run, so that the cache has no other tree under this name
	proxy, mine := t.TempDir(), t.TempDir()
	publish(t, proxy, version)
	t.Cleanup(func() { forget(t, cache, version) })
	env := append(os.Environ(), "GOFLAGS=-mod=mod", "GOSUMDB=off", "GOWORK=off", "CGO_ENABLED=0",
		"GOPROXY=file://"+filepath.ToSlash(proxy)+",file://"+filepath.ToSlash(filepath.Join(cache, "cache", "download"))+","+usual)
	run(t, mine, env, "go", "mod", "init", "example.com/mine")
	if err := os.WriteFile(filepath.Join(mine, "mine_test.go"), []byte(imports), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, mine, env, "go", "get", "-t", module+"@"+version)
	list := run(t, mine, env, "go", "list", "-deps", "-test", "-f", "{{.ImportPath}} {{with .Module}}{{.Version}}{{end}}", ".")
	if want := module + "/embed/embedtest " + version + "\n"; !strings.Contains(list, want) {
		t.Errorf("the packages of the test have no %q:\n%.2000s", want, list)
	}
	text, err := os.ReadFile(filepath.Join(mine, "go.mod"))
	if err != nil || strings.Contains(string(text), "replace") {
		t.Errorf("go.mod replaces modules: %v\n%s", err, text)
	}
}

// run runs a program in a folder, and returns its output.
func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), name, args...)
	c.Dir, c.Env = dir, env
	var problems strings.Builder
	c.Stderr = &problems
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, problems.String())
	}
	return string(out)
}

// publish writes what a module proxy serves of a version of this tree.
func publish(t *testing.T, proxy, version string) {
	t.Helper()
	dir := filepath.Join(proxy, filepath.FromSlash(module), "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		version + ".mod":  mod,
		version + ".info": fmt.Appendf(nil, `{"Version": %q, "Time": "2026-01-01T00:00:00Z"}`, version),
		"list":            []byte(version + "\n"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Create(filepath.Join(dir, version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	z := zip.NewWriter(f)
	if err := pack(z, "../..", module+"@"+version+"/"); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// pack adds the files of the module in a folder that packages are made of: no modules below it, no tests and no binaries.
func pack(z *zip.Writer, root, prefix string) error {
	return filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			_, nested := os.Stat(filepath.Join(path, "go.mod"))
			hidden := strings.HasPrefix(e.Name(), ".") && path != root
			if path != root && (nested == nil || hidden || e.Name() == "testdata" || e.Name() == "bin" || e.Name() == "dist") {
				return fs.SkipDir
			}
			return nil
		}
		if !e.Type().IsRegular() || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(e.Name(), ".") {
			return nil
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		to, err := z.CreateHeader(&zip.FileHeader{Name: prefix + filepath.ToSlash(name), Method: zip.Store})
		if err != nil {
			return err
		}
		from, err := os.Open(path)
		if err != nil {
			return err
		}
		defer from.Close()
		_, err = io.Copy(to, from)
		return err
	})
}

// forget removes a version of this module from the machine's cache.
func forget(t *testing.T, cache, version string) {
	t.Helper()
	tree := filepath.Join(cache, filepath.FromSlash(module)+"@"+version)
	err := filepath.WalkDir(tree, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			err = os.Chmod(path, 0o755) // go writes folders that cannot be written to
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		t.Errorf("remove the module from the cache: %v", err)
	}
	downloads := filepath.Join(cache, "cache", "download", filepath.FromSlash(module), "@v")
	files, err := filepath.Glob(filepath.Join(downloads, version+".*"))
	if err != nil {
		t.Error(err)
	}
	for _, path := range append(files, tree) {
		if err := os.RemoveAll(path); err != nil {
			t.Errorf("remove the module from the cache: %v", err)
		}
	}
}
