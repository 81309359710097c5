// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package console

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mortise-dev/mortise/internal/agent/netlab"
	"github.com/mortise-dev/mortise/internal/machine/unshare"
)

// aloneTest is "init", then "test", in the processes of the test that is alone on its machine.
const aloneTest = "CONSOLE_ALONE"

func TestMain(m *testing.M) {
	if os.Getenv(aloneTest) == "init" {
		os.Exit(runInit())
	}
	os.Exit(m.Run())
}

// runInit is the first process of the namespaces: it starts the test there, and takes in orphans until the test ends.
func runInit() int {
	if err := unshare.Arrange(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Env = append(os.Environ(), aloneTest+"=test")
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	return unshare.Init(c)
}

// TestContainers has a browser open a terminal in a real container, and read its log, on a node in namespaces of its own.
func TestContainers(t *testing.T) {
	env := means(t)
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: a node with real containers, in namespaces of its own, needs root")
	}
	if testing.Short() {
		t.Skip("-short: containers are left to the full run")
	}
	if os.Getenv(aloneTest) == "" {
		again(t, env)
		return
	}
	netlab.Outside(t) // the network that the node has its address of
	program := os.Getenv("CONSOLE_MORTISE")
	dir := t.TempDir()
	data := filepath.Join(dir, "machine")
	said, err := exec.CommandContext(t.Context(), program, "machine", "prepare", "--data-dir", data).CombinedOutput()
	if err != nil {
		t.Fatalf("machine prepare: %v\n%s", err, said)
	}
	defer func() {
		if out, err := exec.Command(program, "machine", "destroy", "--data-dir", data).CombinedOutput(); err != nil {
			t.Errorf("machine destroy: %v\n%s", err, out)
		}
	}()
	lines := strings.Split(strings.TrimSpace(string(said)), "\n")
	// How full this machine's disk is must decide neither whether pods run nor which images are kept.
	config := filepath.Join(dir, "kubelet.yaml")
	text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nevictionHard: {memory.available: \"50Mi\"}\n" +
		"imageGCHighThresholdPercent: 100\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	node, err := json.Marshal([]string{"--node", "cri", "--cri-socket", lines[len(lines)-1], "--kubelet-config", config, "--no-kubelet-links"})
	if err != nil {
		t.Fatal(err)
	}
	drive(t, append(env, "CONSOLE_NODE="+string(node), "CONSOLE_DIR="+dir), "containers.test.mjs")
}

// again runs the test that calls it in a process whose network, mounts and process numbers are its own; all that it leaves ends with it.
func again(t *testing.T, env []string) {
	t.Helper()
	remove, err := unshare.Make()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=9m")
	c.Env = append(env, aloneTest+"=init", "CONSOLE_MORTISE="+program(t, env))
	c.Stdout, c.Stderr = t.Output(), t.Output()
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	// The death that is signalled is the thread's.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := c.Run(); err != nil {
		t.Errorf("the test in namespaces of its own: %v", err)
	}
}
