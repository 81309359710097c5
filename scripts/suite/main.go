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
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// tags are those of bin/mortise, in all modules: what they share is compiled once.
const tags = "grpcnotrace"

// logFile keeps the events of the last run.
const logFile = "bin/test.json"

// lanes is how many go commands run at a time, each with its share of the processors. The longest package, which waits for programs much
// of the time, so runs beside the others.
const lanes = 2

// piece is a part of the suite: packages of a Go module.
type piece struct {
	dir      string
	timeout  string // of a package
	args     []string
	packages []string
}

func (p piece) String() string {
	if len(p.packages) == 1 && p.packages[0] != "./..." {
		return path.Join(p.dir, p.packages[0])
	}
	return p.dir
}

// pieces begin in this order. Those of this module come first: they compile what the others share with it.
func pieces(ctx context.Context) ([]piece, error) {
	const longest = "./test"
	rest, err := otherPackages(ctx, longest)
	if err != nil {
		return nil, err
	}
	vetted := []string{"-vet=off"} // scripts/lint runs the whole of go vet on this module
	again := []string{"-count=1"}  // what a test builds and runs is not what the go command compares
	all := []string{"./..."}
	return []piece{
		{".", "40m", append(again, vetted...), []string{longest}},
		{".", "20m", vetted, rest},
		{"test/helm", "10m", again, all},
		{"test/opa", "10m", again, all},
		{"test/scheduling", "10m", again, all},
		{"test/dex", "20m", again, all},
		{"test/aggregated", "20m", again, all},
		{"test/etcd", "20m", again, all},
		{"test/robustness", "10m", again, all},
		{"test/kubescheduler", "20m", again, all},
		{"test/podautoscaler", "20m", again, all},
		{"test/persistentvolume", "10m", again, all},
		{"test/csisanity", "5m", again, all},
		{"test/resourcemanagers", "20m", again, all},
		{"test/csi", "20m", again, all},
		{"test/cloud", "5m", again, all},
		{"test/ingress", "20m", again, all},
	}, nil
}

// otherPackages lists the packages of this module but one.
func otherPackages(ctx context.Context, but string) ([]string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-tags", tags, "-f", "{{.Dir}}", "./...").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	var list []string
	for _, dir := range strings.Fields(string(out)) {
		rel, err := filepath.Rel(root, dir)
		if err != nil {
			return nil, err
		}
		if p := "./" + filepath.ToSlash(rel); p != but {
			list = append(list, p)
		}
	}
	return list, nil
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
	t.log, t.keep = logFile, log
	todo, err := pieces(ctx)
	if err != nil {
		fmt.Println(err)
		return false
	}
	queue := make(chan piece, len(todo))
	for _, p := range todo {
		queue <- p
	}
	close(queue)
	var running sync.WaitGroup
	for range lanes {
		running.Go(func() {
			for p := range queue {
				if failed, err := t.command(ctx, p); err != nil && failed == 0 {
					t.broken(p.String(), err)
				}
				t.printf("== %s ended, after %.0f s\n", p, time.Since(begin).Seconds())
			}
		})
	}
	running.Wait()
	if changed {
		optional(ctx, t, begin.Add(within))
	}
	return t.close(os.Getenv("CI") != "")
}

// command runs the tests of a piece and reads their events. It returns how many failures these told of.
func (t *tally) command(ctx context.Context, p piece) (failed int, err error) {
	share := max(1, runtime.NumCPU()/lanes)
	args := []string{"test", "-json", "-p", strconv.Itoa(share), "-tags", tags, "-timeout", p.timeout}
	args = slices.Concat(args, p.args, p.packages)
	c := exec.CommandContext(ctx, "go", args...)
	c.Dir = filepath.FromSlash(p.dir)
	c.Stderr = os.Stdout
	out, err := c.StdoutPipe()
	if err != nil {
		return 0, fmt.Errorf("read go test: %w", err)
	}
	if err := c.Start(); err != nil {
		return 0, fmt.Errorf("start go test: %w", err)
	}
	failed = t.read(out)
	_, _ = io.Copy(io.Discard, out)
	if err := c.Wait(); err != nil {
		return failed, fmt.Errorf("go test: %w", err)
	}
	return failed, nil
}
