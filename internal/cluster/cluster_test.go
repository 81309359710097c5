// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/internal/lifecycle"
)

// started starts a cluster that is stopped when the test ends, and also returns what its steps have made.
func started(t *testing.T, s Settings) (*Cluster, *assembly) {
	t.Helper()
	c, a, err := start(t.Context(), s, steps())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c, a
}

// TestFailingStart fails each step in turn: no goroutine of ours, no file and no listener stays, and the next start finds the data
// directory unlocked.
func TestFailingStart(t *testing.T) {
	broken := errors.New("broken on purpose")
	s := Settings{DataDir: t.TempDir()}
	s.KubeconfigFile = filepath.Join(s.DataDir, "kubeconfig")
	c, _, err := start(t.Context(), s, steps()) // what is made once in a process is made now
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	files := openFiles(t)
	for i, step := range steps() {
		t.Run(step.Name, func(t *testing.T) {
			all := slices.Clone(steps())
			all[i] = lifecycle.Step[*assembly]{Start: func(context.Context, *assembly) error { return broken }}
			if _, _, err := start(t.Context(), s, all); !errors.Is(err, broken) {
				t.Fatalf("Start answers %v", err)
			}
			if left := await(func() []string { return goroutines() }); len(left) > 0 {
				t.Errorf("goroutines stay:\n%s", strings.Join(left, "\n\n"))
			}
			extra := await(func() []string {
				return slices.DeleteFunc(openFiles(t), func(f string) bool { return slices.Contains(files, f) })
			})
			if len(extra) > 0 {
				t.Errorf("open files stay: %q", extra)
			}
		})
	}
	if c, _, err = start(t.Context(), s, steps()); err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
}

// await calls a function until nothing is left, or for some seconds: connections that were closed, and goroutines whose context has
// ended, go without an event.
func await(left func() []string) []string {
	deadline := time.Now().Add(10 * time.Second)
	for {
		found := left()
		if len(found) == 0 || time.Now().After(deadline) {
			return found
		}
		runtime.Gosched()
	}
}

// goroutines are the stacks of those that run code of ours, but for the test's.
func goroutines() (stacks []string) {
	buf := make([]byte, 4<<20)
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(stack, "mortise-dev/mortise/") && !strings.Contains(stack, "testing.tRunner") {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

// openFiles are this process's open files, listeners among them.
func openFiles(t *testing.T) (files []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil { // else it is the directory's own
			files = append(files, fmt.Sprint(to))
		}
	}
	return files
}
