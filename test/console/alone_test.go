// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package console

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mortise-dev/mortise/internal/agent/netlab"
	"github.com/mortise-dev/mortise/internal/machine/unshare/unsharetest"
)

func TestMain(m *testing.M) {
	if os.Getenv(unsharetest.Variable) == "init" {
		os.Exit(unsharetest.Init())
	}
	os.Exit(m.Run())
}

// TestContainers has a browser open a terminal in a real container, and read its log, on a node in namespaces of its own.
func TestContainers(t *testing.T) {
	if os.Getenv("CONSOLE_BROWSERS") != full {
		t.Skip("SKIPPED: CONSOLE_BROWSERS is not full")
	}
	node, env := means(t, chromium)
	if !unsharetest.Alone(t, func() []string { return append(env, "CONSOLE_MORTISE="+program(t, env)) }) {
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
	flags, err := json.Marshal([]string{"--node", "cri", "--cri-socket", lines[len(lines)-1], "--kubelet-config", config,
		"--no-kubelet-links"})
	if err != nil {
		t.Fatal(err)
	}
	drive(t, node, append(env, "CONSOLE_NODE="+string(flags), "CONSOLE_DIR="+dir), "containers.test.mjs")
}
