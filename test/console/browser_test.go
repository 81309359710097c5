// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// browsers are the programs that the tests drive, by the variable that tells the tests where they are.
var browsers = map[string][]string{
	"CONSOLE_CHROMIUM": {"chromium", "chromium-browser", "google-chrome"},
	"CONSOLE_FIREFOX":  {"firefox-esr", "firefox"},
}

// TestBrowsers runs the tests in browsers where CONSOLE_BROWSERS is set: the suite does not run them yet.
func TestBrowsers(t *testing.T) {
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
		if path == "" && os.Getenv("CI") != "" {
			t.Fatalf("none of %v is installed", names)
		}
		env = append(env, variable+"="+path)
		if path == "" {
			t.Skipf("none of %v is installed", names)
		}
	}
	if _, err := exec.LookPath("npm"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("npm is not installed")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	run(ctx, t, "browser", env, "npm", "ci", "--no-audit", "--no-fund", "--loglevel=error", "--ignore-scripts")
	dir := t.TempDir()
	program := os.Getenv("CONSOLE_MORTISE")
	if program == "" {
		program = filepath.Join(dir, "mortise")
		run(ctx, t, "../..", append(env, "CGO_ENABLED=0"), "go", "build", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", program,
			"./cmd/mortise")
	}
	env = append(env, "CONSOLE_MORTISE="+program, "CONSOLE_DIR="+dir)
	run(ctx, t, "browser", env, "node", "--test", "--test-reporter=spec", "--test-concurrency=1", "chromium.test.mjs", "firefox.test.mjs")
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
