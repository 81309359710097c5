// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// costs runs the tests that measure, on two processors. It returns their attributes.
func costs(ctx context.Context, tree string, forks, environments int) (got map[string]string, err error) {
	dir, err := os.MkdirTemp("", "testcost")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	got = map[string]string{}
	for _, m := range []struct{ folder, test, benchmark, times string }{
		{folder: "embed/embedtest", test: "^(TestNewCosts|TestForkCosts)$", times: "1x"},
		{folder: "embed/embedtest", test: "^TestParallelForks$", times: "1x"}, // in a process of its own: its memory is measured
		{folder: "embed/envtest", test: "^$", benchmark: "^BenchmarkEnvironment$", times: "5x"},
		{folder: "embed/envtest", test: "^$", benchmark: "^BenchmarkParallelEnvironments$", times: strconv.Itoa(environments) + "x"},
	} {
		binary := filepath.Join(dir, filepath.Base(m.folder)+".test")
		if _, err := os.Stat(binary); err != nil {
			if _, _, err := run(ctx, tree, nil, "test", "-c", "-tags", "grpcnotrace", "-o", binary, "./"+m.folder); err != nil {
				return nil, err
			}
		}
		args := []string{"-test.v", "-test.run=" + m.test, "-test.bench=" + m.benchmark, "-test.benchtime=" + m.times}
		c := exec.CommandContext(ctx, binary, args...) //nolint:gosec // the arguments are ours
		c.Dir, c.Stderr = filepath.Join(tree, m.folder), os.Stderr
		c.Env = append(os.Environ(), "GOMAXPROCS=2", "MORTISE_FORKS="+strconv.Itoa(forks))
		out, err := c.Output()
		if err != nil {
			return nil, fmt.Errorf("run %s%s of %s: %w\n%s", m.test, m.benchmark, m.folder, err, out)
		}
		for line := range strings.Lines(string(out)) {
			if words := strings.SplitN(strings.TrimSpace(line), " ", 6); len(words) == 6 && words[1] == "ATTR" {
				got[words[4]] = words[5]
			}
		}
		if used, ok := c.ProcessState.SysUsage().(*syscall.Rusage); ok && m.test == "^TestParallelForks$" {
			took := c.ProcessState.UserTime() + c.ProcessState.SystemTime()
			got["parallel"] += fmt.Sprintf(", %.1f s of processor time, %d MB resident", took.Seconds(), used.Maxrss/1024)
		}
	}
	return got, nil
}
