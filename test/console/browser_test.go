// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package console

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/internal/machine/unshare/unsharetest"
)

// browsers are the programs that the tests drive, by the variable that tells the tests where they are.
var browsers = map[string][]string{
	"CONSOLE_CHROMIUM": {"chromium", "chromium-browser", "google-chrome"},
	"CONSOLE_FIREFOX":  {"firefox-esr", "firefox"},
}

// TestBrowsers runs the tests in browsers where CONSOLE_BROWSERS is set. "full" has each page in both themes.
func TestBrowsers(t *testing.T) {
	env := means(t)
	dex := filepath.Join(t.TempDir(), "dex")
	run(t.Context(), t, "../dex", append(env, "CGO_ENABLED=0"), "go", "build", "-o", dex, "github.com/dexidp/dex/cmd/dex")
	env = append(env, "CONSOLE_DEX="+dex, "CONSOLE_MORTISE="+program(t, env), "CONSOLE_DIR="+t.TempDir())
	drive(t, env, "chromium.test.mjs", "firefox.test.mjs", "signin.test.mjs")
}

// means returns the environment of the tests in browsers, or skips the test that calls it where they are not wanted, or where the machine
// lacks what they need: a missing download is no fault of the console's, and the suite prints the reason.
func means(t *testing.T) []string {
	t.Helper()
	if os.Getenv("CONSOLE_BROWSERS") == "" {
		t.Skip("CONSOLE_BROWSERS is not set")
	}
	env := os.Environ()
	for variable, names := range browsers {
		path := ""
		for _, name := range names {
			if found, err := exec.LookPath(name); err == nil {
				path = found
				break
			}
		}
		if path == "" {
			t.Skipf("none of %v is installed", names)
		}
		env = append(env, variable+"="+path)
	}
	if os.Getenv(unsharetest.Variable) != "" {
		return env // the packages are there
	}
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("npm is not installed")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "npm", "ci", "--no-audit", "--no-fund", "--loglevel=error", "--ignore-scripts")
	c.Dir, c.Env = "browser", env
	if out, err := c.CombinedOutput(); err != nil {
		t.Skipf("npm has no packages for the tests: %v: %s", err, strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", "; "))
	}
	return env
}

// program returns the program that the tests start, and builds it if CONSOLE_MORTISE names none.
func program(t *testing.T, env []string) string {
	t.Helper()
	if path := os.Getenv("CONSOLE_MORTISE"); path != "" {
		return path
	}
	path := filepath.Join(t.TempDir(), "mortise")
	run(t.Context(), t, "../..", append(env, "CGO_ENABLED=0"), "go", "build", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", path,
		"./cmd/mortise")
	return path
}

// drive runs files of tests in browsers.
func drive(t *testing.T, env []string, files ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	run(ctx, t, "browser", env, "node", append([]string{"--test", "--test-reporter=spec", "--test-concurrency=2"}, files...)...)
}

// run runs a program in a process group of its own, which ends with it.
func run(ctx context.Context, t *testing.T, dir string, env []string, name string, args ...string) {
	t.Helper()
	c := exec.CommandContext(ctx, name, args...)
	c.Dir, c.Env = dir, env
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 5 * time.Second
	out, err := c.CombinedOutput()
	if c.Process != nil {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // what it left behind; nothing as a rule
	}
	t.Logf("%s\n%s", name, out)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}
