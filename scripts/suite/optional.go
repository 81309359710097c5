// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// What the optional steps need at the least, and fuzzing gets.
const (
	fuzzTime  = 5 * time.Second
	leastTime = time.Minute      // to build and run one package
	ending    = 20 * time.Second // for what is interrupted to end
)

// optional runs the race detector and the fuzz targets of the packages that the change touches, up to the time given. What does not end
// until then is left out, which is no failure.
func optional(ctx context.Context, t *tally, until time.Time) {
	base, paths := changed(ctx)
	if base == "" {
		fmt.Fprintln(t.to, "== no commit to compare with: nothing is fuzzed nor run under the race detector")
		return
	}
	chosen := packages(paths)
	fuzz := targets(chosen)
	fmt.Fprintf(t.to, "== the change since %.12s touches %d packages with %d fuzz targets; %.0f s are left for them\n", base, len(chosen),
		len(fuzz), time.Until(until).Seconds())
	for _, p := range chosen {
		fmt.Fprintln(t.to, "  ", p)
	}
	within, cancel := context.WithDeadline(ctx, until.Add(-ending))
	defer cancel()
	begin := time.Now()
	// Half of the time at most is for fuzzing, so that neither starves the other.
	half, done := context.WithDeadline(within, begin.Add(time.Until(until)/2))
	defer done()
	for i, f := range fuzz {
		if !fuzzed(half, t, f) {
			left := make([]string, 0, len(fuzz)-i)
			for _, f := range fuzz[i:] {
				left = append(left, f[0]+" "+f[1])
			}
			fmt.Fprintf(t.to, "== not fuzzed, for the time: %s\n", strings.Join(left, ", "))
			break
		}
	}
	// Those run for longer than all others together, mostly on programs that are built without the detector: make race has them.
	chosen = slices.DeleteFunc(chosen, func(p string) bool { return p == "./test" || p == "./bench" })
	for i, p := range chosen {
		if !raced(within, t, p) {
			fmt.Fprintf(t.to, "== not run under the race detector, for the time: %s\n", strings.Join(chosen[i:], " "))
			break
		}
	}
	fmt.Fprintf(t.to, "== fuzzing and the race detector ended, after %.0f s\n", time.Since(begin).Seconds())
}

// enough reports whether a context's time is worth a step.
func enough(ctx context.Context) bool {
	until, limited := ctx.Deadline()
	return ctx.Err() == nil && (!limited || time.Until(until) > leastTime)
}

// fuzzed fuzzes a target, and reports whether there was the time to. The go command can miss its own deadline on a busy machine, which it
// calls a failure although no input failed (golang/go#75804, mended in Go 1.27): such a run counts as one that ended.
func fuzzed(ctx context.Context, t *tally, f [2]string) bool {
	if !enough(ctx) {
		return false
	}
	out, err := toEnd(ctx, nil, "test", "-tags", tags, "-vet=off", "-run", "^$", "-fuzz", "^"+f[1]+"$", "-fuzztime", fuzzTime.String(), f[0])
	if ctx.Err() != nil {
		return false
	}
	missed := bytes.Contains(out, []byte("\n    context deadline exceeded\n")) && !bytes.Contains(out, []byte("Failing input"))
	if err != nil && !missed {
		t.broken("fuzz "+f[0]+" "+f[1], fmt.Errorf("%w\n%s", err, out))
		return true
	}
	t.passed++
	fmt.Fprintf(t.to, "fuzzed\t%s %s\t%v\n", f[0], f[1], fuzzTime)
	return true
}

// raced runs the tests of a package under the race detector, and reports whether there was the time to.
func raced(ctx context.Context, t *tally, p string) bool {
	if !enough(ctx) {
		return false
	}
	begin := time.Now()
	env := []string{"CGO_ENABLED=1"}
	if !strings.Contains(p, "internal/controllers") { // years pass by their clocks, and the detector looks at all objects each second of them
		env = append(env, "KUBE_CACHE_MUTATION_DETECTOR=true")
	}
	out, err := toEnd(ctx, env, "test", "-tags", tags, "-vet=off", "-race", "-short", p)
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		t.broken("race "+p, fmt.Errorf("%w\n%s", err, out))
		return true
	}
	t.passed++
	fmt.Fprintf(t.to, "raced\t%s\t%.1fs\n", p, time.Since(begin).Seconds())
	return true
}

// toEnd runs the go command, or interrupts it with the context.
func toEnd(ctx context.Context, env []string, args ...string) ([]byte, error) {
	c := exec.CommandContext(ctx, "go", args...)
	c.Env = append(os.Environ(), env...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the tests' processes end with it
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = ending
	return c.CombinedOutput()
}
