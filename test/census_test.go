// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// mountSmall mounts the small file system that the node's own files are on.
func (n *realNode) mountSmall(t *testing.T) {
	t.Helper()
	dir := filepath.Join(n.dir, "kubelet")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=32m,mode=755"); err != nil {
		t.Fatal(err)
	}
}

// census lists, by kind, everything that pods have on a machine beside their processes' own: it is the same before the first pod and
// after the last. Only a test that is alone can count so.
func (n *realNode) census(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	root, self := "", "self"
	run := func(args ...string) string {
		text, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, text)
		}
		return string(text)
	}
	if n.host != nil {
		self, run = strconv.Itoa(n.host.pid), n.host.run
		root = "/proc/" + self + "/root"
	}
	entries := func(kind, pattern string) {
		found, err := filepath.Glob(root + pattern)
		if err != nil {
			t.Fatal(err)
		}
		out[kind] = found
	}
	entries("named network namespaces", "/run/netns/*")
	entries("leases of addresses", "/var/lib/cni/networks/mortise/10.*")
	entries("results of CNI", "/var/lib/cni/results/*")
	entries("directories of pods", filepath.Join(n.dir, "kubelet/pods/*"))
	entries("logs of pods", "/var/log/pods/*")
	entries("bundles", filepath.Join(n.dir, "containerd/state/io.containerd.runtime.v2.task/k8s.io/*"))
	out["devices"] = strings.Fields(run("ls", "/proc/sys/net/ipv4/conf"))
	processes(func(pid, name string) {
		if line, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline")); err == nil && name == "containerd-shim" &&
			bytes.Contains(line, []byte(n.socket)) {
			out["shims"] = append(out["shims"], pid)
		}
		if ns, err := os.Readlink(filepath.Join("/proc", pid, "ns/net")); err == nil && n.host == nil &&
			!slices.Contains(out["network namespaces"], ns) {
			out["network namespaces"] = append(out["network namespaces"], ns)
		}
	})
	slices.Sort(out["network namespaces"])
	mounts, err := os.ReadFile(filepath.Join("/proc", self, "mountinfo"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 {
			out["mounts"] = append(out["mounts"], f[4])
		}
	}
	slices.Sort(out["mounts"])
	for _, uid := range n.everyPod(t) {
		for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
			roots, err := filepath.Glob(filepath.Join(pattern, n.host.cgroups(), "kubepods"))
			if err != nil {
				t.Fatal(err)
			}
			for _, root := range roots {
				// What is removed meanwhile is no error.
				_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
					if err == nil && strings.Contains(path, uid) {
						out["cgroups"] = append(out["cgroups"], path)
					}
					return nil
				})
			}
		}
	}
	for line := range strings.Lines(run("nft", "--stateless", "list", "ruleset")) {
		out["rules"] = append(out["rules"], counters.ReplaceAllString(strings.TrimSpace(line), ""))
	}
	slices.Sort(out["rules"]) // tables are listed as they were made
	return out
}

// counters change, and so does the API's port, which is a free one with each start.
var counters = regexp.MustCompile(`counter packets \d+ bytes \d+|192\.168\.(50|70)\.1(:| \. )\d+`)

// processes goes through the processes of the test's own.
func processes(each func(pid, name string)) {
	dirs, _ := filepath.Glob("/proc/[0-9]*") // a pattern that is right
	for _, dir := range dirs {
		if name, err := os.ReadFile(filepath.Join(dir, "comm")); err == nil {
			each(filepath.Base(dir), string(bytes.TrimSpace(name)))
		}
	}
}

// everyPod are the UIDs of all pods that the node has heard of, by what it told of them.
func (n *realNode) everyPod(t *testing.T) []string {
	t.Helper()
	events, err := n.c.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, event := range events.Items {
		if event.InvolvedObject.Kind == "Pod" && event.InvolvedObject.UID != "" { // those of evictions by taints have none
			n.pods[string(event.InvolvedObject.UID)] = true
		}
	}
	return slices.Sorted(maps.Keys(n.pods))
}

// leavesNothing compares with a census that was before.
func (n *realNode) leavesNothing(t *testing.T, before map[string][]string) {
	t.Helper()
	// Processes end and the proxy writes without an event that a test could wait for, so it counts again until all is as before.
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	limit := time.After(patience)
	for {
		diff := cmp.Diff(before, n.census(t))
		if diff == "" {
			return
		}
		select {
		case <-again.C:
		case <-limit:
			t.Fatalf("something is left (-before +after):\n%s", diff)
		}
	}
}
