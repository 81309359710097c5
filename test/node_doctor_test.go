// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/mortise-dev/mortise/internal/agent/netlab"
)

// The sandbox and the pod that were never there, and what is left of them.
const (
	deadSandbox = "dead00000000000000000000000000000000000000000000000000000000beef"
	deadPod     = "dddddddd-dddd-dddd-dddd-dddddddddddd"
	deadNetns   = "/run/netns/cni-dddddddd-dddd-dddd-dddd-dddddddddddd"
)

// symptom is a row of what `mortise node doctor` finds.
type symptom struct{ Check, State, What, Do string }

// doctor examines a node beside its pods: one that is well, then one on which pods that are no more have left everything that pods can
// leave.
func doctor(t *testing.T, n *realNode) {
	well := webPod("well", nil)
	well.Spec.Containers[0].Ports[0].HostPort = 18080
	n.create(t, well)
	n.ready(t, "well")
	before := n.census(t)
	for _, s := range n.examine(t, true) {
		if s.State == "wrong" || s.State == "fixed" {
			t.Errorf("nothing is wrong, but: %+v", s)
		}
	}

	n.litter(t)
	littered := n.census(t)
	for _, s := range n.examine(t, true) {
		if s.State == "wrong" {
			t.Errorf("what is young is let be, but: %+v", s)
		}
	}
	left := map[string]string{"attachments": deadSandbox, "rules": deadSandbox, "network namespaces": deadNetns, "pods' cgroups": deadPod}
	n.wantWrong(t, left)
	if diff := cmp.Diff(littered, n.census(t)); diff != "" {
		t.Errorf("an examination has changed something (-before +after):\n%s", diff)
	}
	// The node, which does not know of the pod's volume, would take it away itself.
	n.stop()
	volume := filepath.Join(n.dir, "kubelet/pods", deadPod, "volumes/v")
	if err := os.MkdirAll(volume, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", volume, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	left["mounts"] = deadPod
	n.wantWrong(t, left)

	fixed := 0
	for _, s := range n.examine(t, true, "--older", "0s", "--fix") {
		if s.State == "fixed" {
			fixed++
		}
	}
	if fixed < 5 {
		t.Errorf("%d things were mended", fixed)
	}
	if err := os.RemoveAll(filepath.Join(n.dir, "kubelet/pods", deadPod)); err != nil {
		t.Fatal(err)
	}
	n.up(t)
	n.ready(t, "well")
	if page, err := n.call(nodeAddress + ":18080"); err != nil || !strings.HasPrefix(page, "well ") {
		t.Errorf("after that, the pod's port says %q, %v", page, err)
	}
	n.leavesNothing(t, before)
}

// examine runs `mortise node doctor`, and wants it to say whether the node is well.
func (n *realNode) examine(t *testing.T, well bool, args ...string) []symptom {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{"node", "doctor", "--data-dir", n.dir, "--cri-socket", n.socket, "--kubelet-config", n.config, "--output", "json"},
		args...)
	c := exec.CommandContext(t.Context(), path, args...)
	c.Stderr = t.Output()
	out, err := c.Output()
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		t.Fatalf("mortise %s: %v", strings.Join(args, " "), err)
	}
	if (err == nil) != well {
		t.Errorf("mortise %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	var found []symptom
	if err := json.Unmarshal(out, &found); err != nil {
		t.Fatalf("read %s: %v", out, err)
	}
	return found
}

// wantWrong wants what is wrong with the node to be these things, whatever their age.
func (n *realNode) wantWrong(t *testing.T, want map[string]string) {
	t.Helper()
	wrong := map[string]string{}
	for _, s := range n.examine(t, false, "--older", "0s") {
		if s.State == "wrong" {
			wrong[s.Check] += s.What
		}
	}
	for check, words := range want {
		if !strings.Contains(wrong[check], words) {
			t.Errorf("%s: found %q, want %s", check, wrong[check], words)
		}
		delete(wrong, check)
	}
	if len(wrong) > 0 {
		t.Errorf("wrong is also: %v", wrong)
	}
}

// litter leaves a network namespace on the pods' network, by the node's own plug-ins, and a cgroup.
func (n *realNode) litter(t *testing.T) {
	t.Helper()
	makeNamespace(t, deadNetns)
	text, err := os.ReadFile(filepath.Join(n.dir, "containerd", "cni", "10-mortise.conflist"))
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Name, CNIVersion string
		Plugins          []map[string]any
	}
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	bins := filepath.Dir(pluginPath(t))
	var result any
	for _, p := range list.Plugins {
		p["name"], p["cniVersion"] = list.Name, list.CNIVersion
		p["runtimeConfig"] = map[string]any{"portMappings": []any{map[string]any{"hostPort": 18081, "containerPort": 80, "protocol": "tcp"}}}
		if result != nil {
			p["prevResult"] = result
		}
		in, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		c := exec.CommandContext(t.Context(), filepath.Join(bins, p["type"].(string)))
		c.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID="+deadSandbox, "CNI_NETNS="+deadNetns, "CNI_IFNAME=eth0",
			"CNI_PATH="+bins)
		c.Stdin = strings.NewReader(string(in))
		out, err := c.Output()
		if err != nil {
			t.Fatalf("plug-in %s: %v\n%s", p["type"], err, out)
		}
		if err := json.Unmarshal(out, &result); err != nil {
			t.Fatal(err)
		}
	}
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(root + n.host.cgroups()); err != nil {
		root += "/memory"
	}
	cgroup := filepath.Join(root, n.host.cgroups(), "kubepods/besteffort/pod"+deadPod)
	if err := os.MkdirAll(filepath.Join(cgroup, "container"), 0o755); err != nil {
		t.Fatal(err)
	}
	n.pods[deadPod] = true // the census looks for its cgroups
}

// makeNamespace makes a network namespace that no process is in, and binds it to a path.
func makeNamespace(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o444); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	netlab.Apart(func() {
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
		}
		done <- err
	})
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
