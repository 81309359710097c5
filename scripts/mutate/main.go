// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command mutate measures which faults a package's tests detect. It changes the package one fault at a time (a mutant: a
// negated condition, a moved boundary, a changed return value, a dropped call) and runs the tests. A mutant that makes a
// test fail, or run out of time, is killed; one that no test detects survives, and is printed.
//
// All mutants of a package are compiled into one test binary, each behind a switch that an environment variable selects at
// start ([instrument]). A first run of each test by itself records which mutants the test reaches, so that a mutant is run
// against these tests alone, and not at all when there are none.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

// settings are what the flags say.
type settings struct {
	tags    string
	min     float64
	verbose bool
	far     []string // packages whose tests the survivors are run against
	farRun  string   // which of their tests
	only    string   // the mutants whose position or kind contains this
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) // the tests end with it
	defer stop()
	var s settings
	var far string
	flag.StringVar(&s.tags, "tags", "grpcnotrace", "build `tags`")
	flag.Float64Var(&s.min, "min", 90, "the least `percentage` of mutants that the tests of each package have to kill")
	flag.BoolVar(&s.verbose, "v", false, "print what became of every mutant, and not of survivors alone")
	flag.StringVar(&far, "far", "", "`packages`, separated by spaces, whose tests are run against the survivors too")
	flag.StringVar(&s.farRun, "farrun", ".", "run only those tests of the far packages that match this `regexp`")
	flag.StringVar(&s.only, "only", "", "run only mutants whose line in the output contains this `text`")
	flag.Parse()
	s.far = strings.Fields(far)
	enough, err := mutate(ctx, os.Stdout, s, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(2)
	}
	if !enough {
		os.Exit(1)
	}
}

// mutate runs the mutants of each package and reports whether each package reached the least percentage.
func mutate(ctx context.Context, out io.Writer, s settings, patterns []string) (bool, error) {
	packages, err := load(ctx, s.tags, patterns)
	if err != nil {
		return false, err
	}
	far, err := load(ctx, s.tags, s.far)
	if err != nil {
		return false, err
	}
	for _, p := range far.wanted {
		p.far = true
	}
	enough := true
	for _, p := range packages.wanted {
		score, err := room(ctx, out, s, p, far.wanted)
		if err != nil {
			return false, fmt.Errorf("%s: %w", p.ImportPath, err)
		}
		enough = enough && score >= s.min
	}
	return enough, nil
}

// room runs one package's mutants, prints the survivors and a closing line, and returns the percentage of mutants killed.
func room(ctx context.Context, out io.Writer, s settings, p *pkg, far []*pkg) (float64, error) {
	mutants, files, err := p.mutants()
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	overlay, err := instrument(dir, p, mutants, files)
	if err != nil {
		return 0, err
	}
	r := runner{dir: dir, overlay: overlay, tags: s.tags, out: out, only: s.only}
	if err := r.suite(ctx, p, ".", mutants); err != nil {
		return 0, err
	}
	for _, f := range far {
		if err := r.suite(ctx, f, s.farRun, mutants); err != nil {
			return 0, err
		}
	}
	killed, all := 0, 0
	slices.SortStableFunc(mutants, func(a, b *mutant) int {
		return cmp.Or(cmp.Compare(a.at.Filename, b.at.Filename), cmp.Compare(a.at.Offset, b.at.Offset))
	})
	for _, m := range mutants {
		if !strings.Contains(m.String(), s.only) {
			continue
		}
		all++
		if m.killed != "" {
			killed++
		}
		switch {
		case m.killed != "" && s.verbose:
			fmt.Fprintf(out, "%s: killed by %s\n", m, m.killed)
		case m.killed == "" && m.reached:
			fmt.Fprintf(out, "%s: survived\n", m)
		case m.killed == "":
			fmt.Fprintf(out, "%s: survived, not reached\n", m)
		}
	}
	score := 100.0
	if all > 0 {
		score = 100 * float64(killed) / float64(all)
	}
	fmt.Fprintf(out, "%s: killed %d of %d (%.1f %%)\n", p.ImportPath, killed, all, score)
	return score, nil
}
