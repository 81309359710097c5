// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// runner runs test binaries in which the mutants are.
type runner struct {
	dir, overlay, tags string
	out                io.Writer
	only               string
}

// reach is a test, how long it took, and which mutants it reached.
type reach struct {
	test    string
	took    time.Duration
	mutants []byte
}

// suite runs those of the mutants that still live against a package's tests.
func (r *runner) suite(ctx context.Context, p *pkg, tests string, mutants []*mutant) error {
	if len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 {
		return nil
	}
	binary := filepath.Join(r.dir, "tests")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-tags", r.tags, "-overlay", r.overlay, "-o", binary, p.ImportPath)
	build.Dir = p.Dir
	if said, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the tests of %s: %w\n%s", p.ImportPath, err, said)
	}
	names, err := r.list(ctx, p, binary, tests)
	if err != nil {
		return err
	}
	reaches := make([]*reach, len(names))
	if err := inParallel(len(names), func(n int) error {
		reaches[n], err = r.reached(ctx, p, binary, names[n], len(mutants))
		return err
	}); err != nil {
		return err
	}
	return inParallel(len(mutants), func(n int) error {
		m := mutants[n]
		if m.killed != "" || !strings.Contains(m.String(), r.only) {
			return ctx.Err()
		}
		var quick, slow []*reach
		for _, t := range reaches {
			switch {
			case t.mutants[m.id] == 0:
			case t.took < slowest:
				quick = append(quick, t)
			default:
				slow = append(slow, t)
			}
		}
		for _, tests := range [][]*reach{quick, slow} {
			if err := r.meet(ctx, p, binary, tests, m); err != nil {
				return err
			}
		}
		return nil
	})
}

// slowest is how long tests take that are run first; the others meet only the mutants that these let live.
const slowest = time.Second

// meet runs tests with a mutant switched on, if it still lives.
func (r *runner) meet(ctx context.Context, p *pkg, binary string, tests []*reach, m *mutant) error {
	if len(tests) == 0 || m.killed != "" {
		return nil
	}
	m.reached = true
	var which []string
	clean := time.Duration(0)
	for _, t := range tests {
		which = append(which, regexp.QuoteMeta(t.test))
		clean += t.took
	}
	_, err := r.run(ctx, p, limit(clean), []string{selected + "=" + strconv.Itoa(m.id)}, binary, "-test.failfast", "-test.run",
		"^("+strings.Join(which, "|")+")$")
	switch exit := new(exec.ExitError); {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, context.DeadlineExceeded):
		m.killed = "its time limit"
	case errors.As(err, &exit):
		m.killed = p.ImportPath
	case err != nil:
		return err
	}
	return nil
}

// limit is how long the tests that reach a mutant may take with it, when they take so long without. A mutant that makes them
// wait for what never comes costs no more than that.
func limit(clean time.Duration) time.Duration { return 5*time.Second + 3*clean }

// list are the names of a binary's tests.
func (r *runner) list(ctx context.Context, p *pkg, binary, tests string) ([]string, error) {
	said, err := r.run(ctx, p, time.Minute, nil, binary, "-test.list", tests)
	if err != nil {
		return nil, fmt.Errorf("list the tests of %s: %w\n%s", p.ImportPath, err, said)
	}
	var out []string
	for _, name := range strings.Fields(string(said)) {
		if !strings.HasPrefix(name, "Benchmark") {
			out = append(out, name)
		}
	}
	return out, nil
}

// reached runs a test with no mutant switched on.
func (r *runner) reached(ctx context.Context, p *pkg, binary, test string, mutants int) (*reach, error) {
	record := filepath.Join(r.dir, "reached-"+test)
	if err := os.WriteFile(record, make([]byte, mutants+1), 0o600); err != nil {
		return nil, err
	}
	began := time.Now()
	said, err := r.run(ctx, p, 10*time.Minute, []string{recorded + "=" + record}, binary, "-test.run", "^"+regexp.QuoteMeta(test)+"$")
	if err != nil {
		return nil, fmt.Errorf("%s fails by itself, without a mutant: %w\n%s", test, err, said)
	}
	got := &reach{test: test, took: time.Since(began)}
	got.mutants, err = os.ReadFile(record)
	return got, err
}

// run runs a test binary within a time limit and returns what it printed. It runs in a copy of its package's folder, where a mutant
// that gets a path wrong leaves its files. A mutant may loop and allocate for ever, so that its memory is bounded too.
func (r *runner) run(ctx context.Context, p *pkg, limit time.Duration, env []string, binary string, args ...string) ([]byte, error) {
	folder := p.Dir
	if !p.far {
		scratch, err := os.MkdirTemp(r.dir, "run")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(scratch)
		if folder, err = mirror(scratch, p.Module.Dir, p.Dir); err != nil {
			return nil, fmt.Errorf("copy %s: %w", p.Dir, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c := exec.CommandContext(ctx, "sh", append([]string{"-c", `ulimit -v 8000000; exec "$@"`, "sh", binary}, args...)...)
	c.Dir = folder
	c.Env = append(os.Environ(), env...)
	var said bytes.Buffer
	c.Stdout, c.Stderr = &said, &said
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 5 * time.Second
	err := c.Run()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return said.Bytes(), err
}

// inParallel calls a function for 0 to n-1, as many concurrently as there are processors.
func inParallel(n int, do func(int) error) error {
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range n {
		g.Go(func() error { return do(i) })
	}
	return g.Wait()
}
