// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command suite runs the tests of all modules, or `go test -json` as it was recorded. It prints a line for each package when the package
// ends, then the tests that failed with their output, the skipped tests, and one closing line that counts all.
//
// Where CI is set, a class of tests of which no test ran is an error. With -changed it then runs the fuzz targets and the race detector
// on the packages that the change touches, as long as -within allows; what was left out is printed.
//
// The files:
//
//	classes.go   the classes of tests, of which one must have run
//	changed.go   the packages that a change touches
//	optional.go  fuzzing and the race detector, within a time
//	tally.go     what a stream of test events says
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// tags are those of bin/mortise, in all modules: what they share is compiled once.
const tags = "grpcnotrace"

// logFile keeps the events of the last run.
const logFile = "bin/test.json"

// module is a Go module whose tests belong to the suite.
type module struct {
	dir     string
	timeout string
	args    []string
}

// modules are run in this order. The first is the largest, and compiles what the others share with it.
var modules = []module{
	{".", "40m", []string{"-vet=off"}}, // scripts/lint runs the whole of go vet on it
	{"test/helm", "10m", nil},
	{"test/opa", "10m", nil},
	{"test/scheduling", "10m", nil},
	{"test/dex", "20m", nil},
	{"test/aggregated", "20m", nil},
	{"test/etcd", "20m", nil},
	{"test/robustness", "10m", nil},
	{"test/kubescheduler", "20m", nil},
	{"test/podautoscaler", "20m", nil},
	{"test/persistentvolume", "10m", nil},
	{"test/csisanity", "5m", nil},
	{"test/resourcemanagers", "20m", nil},
	{"test/csi", "20m", nil},
	{"test/cloud", "5m", nil},
}

func main() {
	changed := flag.Bool("changed", false, "then fuzz, and run the race detector on, the packages that the change touches")
	within := flag.Duration("within", 10*time.Minute, "the time for -changed; the suite itself is never cut")
	read := flag.String("read", "", "a file of `go test -json` to read in place of a run")
	flag.Parse()
	if !run(context.Background(), *read, *changed, *within) {
		os.Exit(1)
	}
}

// run reports whether all is well.
func run(ctx context.Context, read string, changed bool, within time.Duration) bool {
	begin := time.Now()
	t := newTally(os.Stdout)
	if read != "" {
		f, err := os.Open(read)
		if err != nil {
			fmt.Println(err)
			return false
		}
		defer f.Close()
		t.read(f)
		return t.close(false)
	}
	log, err := os.Create(filepath.FromSlash(logFile))
	if err != nil {
		fmt.Println(err)
		return false
	}
	defer log.Close()
	t.log = logFile
	for _, m := range modules {
		args := append([]string{"test", "-json", "-tags", tags, "-timeout", m.timeout}, m.args...)
		before := t.failed
		if err := t.command(ctx, log, m.dir, append(args, "./...")); err != nil && t.failed == before {
			t.broken(m.dir, err)
		}
		fmt.Printf("== %s ended, after %.0f s\n", m.dir, time.Since(begin).Seconds())
	}
	if changed {
		optional(ctx, t, begin.Add(within))
	}
	return t.close(os.Getenv("CI") != "")
}

// command runs the go command in a module, reads its events and writes them to the log.
func (t *tally) command(ctx context.Context, log io.Writer, dir string, args []string) error {
	c := exec.CommandContext(ctx, "go", args...)
	c.Dir = filepath.FromSlash(dir)
	c.Stderr = os.Stdout
	out, err := c.StdoutPipe()
	if err != nil {
		return fmt.Errorf("read go %s: %w", strings.Join(args, " "), err)
	}
	if err := c.Start(); err != nil {
		return fmt.Errorf("start go %s: %w", strings.Join(args, " "), err)
	}
	t.read(io.TeeReader(out, log))
	_, _ = io.Copy(log, out)
	if err := c.Wait(); err != nil {
		return fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return nil
}
