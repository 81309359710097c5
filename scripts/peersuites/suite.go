// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// options are what the command line says.
type options struct {
	tree, dir, focus, programs string

	ours  bool
	delay time.Duration
}

// suite is a package of a project with tests.
type suite struct {
	options
	project
	folder string
}

const (
	self     = "github.com/mortise-dev/mortise"
	upstream = `"sigs.k8s.io/controller-runtime/pkg/envtest"`
	changed  = `"` + self + `/embed/envtest"`
)

// name is what -run matches.
func (s *suite) name() string { return path.Join(s.project.name, s.folder) }

// run prints the line of a suite.
func (s *suite) run(ctx context.Context) error {
	theirs, ours := "not run", ""
	var specs int
	if !s.ours {
		t, err := s.count(ctx, "envtest", os.Getenv("KUBEBUILDER_ASSETS"))
		if err != nil {
			return err
		}
		theirs, specs = t.String(), t.specs
	}
	assets := filepath.Join(s.dir, "assets")
	if err := s.link(assets); err != nil {
		return err
	}
	t, err := s.count(ctx, "mortise", assets)
	if err != nil {
		return err
	}
	ours, specs = t.String(), max(specs, t.specs)
	fmt.Printf("| %s %s | %d | %s | %s |\n", s.name(), s.version, specs, theirs, ours)
	return nil
}

// link gives Mortise's program the names of envtest's.
func (s *suite) link(assets string) error {
	if err := os.MkdirAll(assets, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"kube-apiserver", "etcd", "kubectl"} {
		if err := os.Symlink(s.programs, filepath.Join(assets, name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// count runs the suite with the programs of a folder, or with the changed import.
func (s *suite) count(ctx context.Context, with, assets string) (tally, error) {
	dir := filepath.Join(s.dir, with, s.project.name)
	change := with == "mortise" && !s.unchanged
	if err := s.prepare(ctx, dir, change); err != nil {
		return tally{}, err
	}
	if err := s.root(dir); err != nil {
		return tally{}, err
	}
	if change && s.delay > 0 {
		if err := slow(filepath.Join(dir, s.folder), s.delay); err != nil {
			return tally{}, err
		}
	}
	args := []string{"test", "-json", "-vet=off", "-count=1", "-timeout=60m", "-tags=grpcnotrace", "./" + s.folder}
	if s.focus != "" {
		args = append(args, s.filter(filepath.Join(dir, s.folder), s.focus)...)
	}
	env := []string{"KUBEBUILDER_ASSETS=" + assets}
	if change {
		env = nil // no programs
	}
	var t tally
	out, runErr := command(ctx, dir, env, args...)
	if err := os.WriteFile(filepath.Join(s.dir, with+"-"+strings.ReplaceAll(s.name(), "/", "-")+".log"), t.read(out), 0o644); err != nil {
		return t, err
	}
	if t.specs == 0 {
		return t, errors.Join(errors.New("no spec ran"), runErr)
	}
	for _, name := range t.failures {
		fmt.Fprintf(os.Stderr, "%s, %s: FAIL %s\n", s.name(), with, name)
	}
	return t, nil
}

// filter is how the command line of a test binary selects specs of Ginkgo, or tests.
func (s *suite) filter(folder, expression string) []string {
	tests, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	for _, file := range tests {
		if text, readErr := os.ReadFile(file); err == nil && readErr == nil && bytes.Contains(text, []byte("RunSpecs(")) {
			return []string{"-ginkgo.focus=" + expression}
		}
	}
	return []string{"-run=" + expression}
}

// prepare copies the module, unless it was copied before.
func (s *suite) prepare(ctx context.Context, dir string, change bool) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	out, err := command(ctx, s.dir, nil, "mod", "download", "-json", s.module+"@"+s.version)
	if err != nil {
		return err
	}
	var got struct{ Dir string }
	if err := json.Unmarshal(out, &got); err != nil {
		return fmt.Errorf("read what go mod download says: %w", err)
	}
	if err := s.copy(got.Dir, dir, change); err != nil {
		return err
	}
	args := append([]string{"mod", "edit", "-require=" + self + "@v0.0.0", "-replace=" + self + "=" + s.tree}, s.edits...)
	if _, err := command(ctx, dir, nil, args...); err != nil {
		return err
	}
	// It writes this module's versions into go.mod: go test alone keeps the older ones there of what it has no need to look up.
	_, err = command(ctx, dir, nil, "list", "-m", "all")
	return err
}

// root lets a suite find its module's files by the path of a source file, which -trimpath makes relative: to the suite's folder, where it
// runs.
func (s *suite) root(dir string) error {
	link := filepath.Join(dir, s.folder, s.module)
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return err
	}
	if err := os.Symlink(dir, link); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// copy copies a module. It changes the import in Go files if told to.
func (s *suite) copy(from, to string, change bool) error {
	return filepath.WalkDir(from, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		if e.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if change && strings.HasSuffix(name, ".go") {
			data = bytes.ReplaceAll(data, []byte(upstream), []byte(changed))
		}
		mode := fs.FileMode(0o644)
		if bytes.HasPrefix(data, []byte("#!")) {
			mode = 0o755 // a module does not keep that a script is executable
		}
		return os.WriteFile(filepath.Join(to, rel), data, mode) //nolint:gosec // below the folder of the copies
	})
}

// command runs the go command, and returns its output.
func command(ctx context.Context, dir string, env []string, args ...string) ([]byte, error) {
	c := exec.CommandContext(ctx, "go", args...) //nolint:gosec // the arguments are ours
	c.Dir, c.Env = dir, append(append(os.Environ(), "GOFLAGS=-mod=mod -trimpath", "GOWORK=off"), env...)
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		return out, fmt.Errorf("go %s: %w", args[0], err)
	}
	return out, nil
}
