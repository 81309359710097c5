// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The suite of nodes is selected and counted by areas.
func TestAreas(t *testing.T) {
	focus, err := run{name: "node", areas: nodeAreas()}.focus("")
	if err != nil {
		t.Fatal(err)
	}
	re := regexp.MustCompile(focus)
	got := results{
		{"[sig-node] Device Plugin [Serial] DevicePlugin Verifies it", "passed", ""},
		{"[sig-node] Device Manager [Serial] keeps", "failed", "no"},
		{"[sig-node] [DRA] [Feature:DynamicResourceAllocation] registers", "skipped", "no"},
	}
	for _, r := range got {
		if !re.MatchString(r.name) {
			t.Errorf("%s is not selected", r.name)
		}
	}
	if re.MatchString("[sig-node] Summary API") {
		t.Error("a test of no area is selected")
	}
	var out strings.Builder
	got.printAreas(&out, nodeAreas())
	for _, want := range []string{"device plug-ins +1 passed, 1 failed, 0 skipped", "DRA +0 passed, 0 failed, 1 skipped"} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

// A unit is started, found, killed, started again and stopped, as the suite does with kubelet.
func TestUnits(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("no bash")
	}
	dir := t.TempDir()
	programs, err := nodePrograms(dir, os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	call := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(filepath.Join(programs, name), args...)
		cmd.Env = append(os.Environ(), "CONFORMANCE_UNITS="+filepath.Join(dir, "units"), "PATH="+programs+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s %q: %v", name, args, err)
		}
		return string(out)
	}
	fifo := filepath.Join(dir, "said")
	if out, err := exec.Command("mkfifo", fifo).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	said := func() string {
		t.Helper()
		text, err := os.ReadFile(fifo) // until the unit has closed it
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	call("systemd-run", "-p", "Delegate=true", "-p", "StandardError=append:"+filepath.Join(dir, "log"), "--unit=kubelet-1.service",
		"--slice=runtime.slice", "--remain-after-exit", "/bin/sh", "-c", `echo "$$0 50%%" >`+fifo+`; exec sleep 600`, "word")
	if got := said(); got != "word 50%\n" {
		t.Errorf("the unit was started with %q", got)
	}
	listed := func(running bool, args ...string) {
		t.Helper()
		all := call("sudo", append([]string{"systemctl", "list-units", "*kubelet*"}, args...)...)
		if got := strings.Contains(all, "kubelet-1.service"); got != running {
			t.Errorf("%q: listed %t", args, got)
		}
	}
	listed(true, "--state=running")
	call("sudo", "systemctl", "reset-failed", "kubelet-1")
	call("systemctl", "restart", "kubelet-1")
	said()
	listed(true, "--state=running")
	call("systemctl", "stop", "kubelet-1.service")
	listed(false, "--state=running")
	listed(true)
}
