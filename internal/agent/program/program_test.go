// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// sh is a command of the shell.
func sh(script string, args ...string) Command {
	return Command{Name: "/bin/sh", Args: append([]string{"-c", script, "sh"}, args...)}
}

func TestRun(t *testing.T) {
	t.Setenv("SECRET", "s")
	c := sh(`cat; echo "$1" "$SECRET" "$LC_ALL"; echo more >&2`, "two words")
	c.Input = "read "
	if out, err := c.Run(t.Context()); string(out) != "read two words  C\n" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
	c = sh(`echo "$SECRET" "$LC_ALL"`)
	c.Env = []string{"SECRET=given"}
	if out, err := c.Run(t.Context()); string(out) != "given \n" || err != nil {
		t.Errorf("with an environment of its own: %q, %v", out, err)
	}
}

// TestFailures: the error of a program that fails has its exit status and what it said, shortened.
func TestFailures(t *testing.T) {
	out, err := sh("echo result; echo why >&2; exit 3").Run(t.Context())
	failed, status := (*Failure)(nil), (*exec.ExitError)(nil)
	if !errors.As(err, &failed) || !errors.As(err, &status) || status.ExitCode() != 3 || out != nil {
		t.Fatalf("%q, %v", out, err)
	}
	if string(failed.Output) != "result\n" || string(failed.Errors) != "why\n" || err.Error() != "exit status 3: result why" {
		t.Errorf("%q, %q, %v", failed.Output, failed.Errors, err)
	}
	if _, err := sh("exit 1").Run(t.Context()); err == nil || err.Error() != "exit status 1" {
		t.Errorf("without words: %v", err)
	}
	if _, err := sh("head -c 100000 /dev/zero | tr '\\0' a >&2; exit 1").Run(t.Context()); err == nil || len(err.Error()) > 400 {
		t.Errorf("with many words: %.1000v", err)
	}
	if _, err := (Command{Name: "/nosuch"}).Run(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a program that is missing: %v", err)
	}
}

// TestProgramThatHangs: it is killed when its time is over or its caller's is.
func TestProgramThatHangs(t *testing.T) {
	c := sh("exec sleep 300")
	c.Time = 50 * time.Millisecond
	if _, err := c.Run(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after its time: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sh("exec sleep 300").Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("after its caller has left: %v", err)
	}
}

// TestOutputIsBounded: a program that writes without end is killed, and one that complains without end is not listened to.
func TestOutputIsBounded(t *testing.T) {
	c := sh("exec cat /dev/zero")
	c.Output = 1000
	failed := (*Failure)(nil)
	if _, err := c.Run(t.Context()); !errors.Is(err, ErrOutput) || !errors.As(err, &failed) || len(failed.Output) != 1000 {
		t.Errorf("output: %v", err)
	}
	c = sh("head -c 1000 /dev/zero")
	c.Output = 1000
	if out, err := c.Run(t.Context()); len(out) != 1000 || err != nil {
		t.Errorf("as much as it may: %d bytes, %v", len(out), err)
	}
	if _, err := sh("head -c 3000000 /dev/zero >&2; exit 1").Run(t.Context()); !errors.As(err, &failed) || len(failed.Errors) != usualOutput {
		t.Errorf("errors: %.100v", err)
	}
}

// TestProgramThatLeavesOthers: what a program has started, and left with its output open, is not waited for. The program has succeeded.
func TestProgramThatLeavesOthers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "left")
	out, err := sh(`echo done; sleep 300 & echo $! > "$1"`, file).Run(t.Context())
	if string(out) != "done\n" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	left, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err == nil {
		err = syscall.Kill(left, syscall.SIGKILL)
	}
	if err != nil {
		t.Errorf("what it left is not there: %v", err)
	}
}
