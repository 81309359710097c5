// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embedtest_test

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestOrdinaryUser: a cluster, its forks, controllers and webhooks need no privileges. A user without any, and without a home, runs tests
// of this package; where an ordinary user runs the tests, all of them show that.
func TestOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("all tests of this package run as an ordinary user")
		return
	}
	const (
		nobody = 65534
		tests  = "^(TestForkIsIndependent|TestForkHasControllers|TestReset|TestWebhook)$"
	)
	child := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.run="+tests)
	child.Dir, child.Env = "/", append(os.Environ(), "HOME=/nonexistent", "TMPDIR=/tmp")
	child.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := child.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestForkHasControllers ") {
		t.Errorf("an ordinary user's run of the tests: %v\n%s", err, out)
	}
}
