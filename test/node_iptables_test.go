// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestNodeWithoutNFT has a node on a machine that has no program nft: it takes iptables unasked, and pods and clients find Services, ports
// and the world outside by it. When the node is destroyed no rule is left.
func TestNodeWithoutNFT(t *testing.T) {
	if !alone(t) {
		return
	}
	hide(t, "nft")
	n := startNode(t)
	web, caller := webPod("web", map[string]string{"app": "who"}), idlePod("caller")
	web.Spec.Containers[0].Ports[0].HostPort = 18080
	n.create(t, web, caller)
	service := n.createService(t, "who", corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, Selector: web.Labels, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromString("http")}},
	})
	n.outside.Serve("tcp", "192.168.50.2:8080")
	n.ready(t, "web")
	ip := n.ready(t, "caller").Status.PodIP

	for _, to := range []string{"who", service.Spec.ClusterIP} {
		names, seen := answers(t, n.inside(t, "caller", who(to)))
		want(t, "who answers a pod at "+to, names, "web")
		want(t, "whom the server sees at "+to, seen, ip)
	}
	for what, to := range map[string]string{"node port": nodePort(service), "host's port": nodeAddress + ":18080"} {
		if page, err := n.call(to); err != nil || !strings.HasPrefix(page, "web ") {
			t.Errorf("from outside, the %s says %q, %v", what, page, err)
		}
	}
	names, seen := answers(t, n.inside(t, "caller", "nc -w 20 192.168.50.2 8080"))
	want(t, "who answers a pod outside", names, "client")
	want(t, "whom a server outside sees", seen, nodeAddress)
	for _, s := range n.examine(t, true) {
		if s.State == "wrong" {
			t.Errorf("the node is well, but: %+v", s)
		}
	}

	made := chains(t)
	for _, chain := range []string{"MORTISE-SERVICES", "MORTISE-PODS"} {
		if !slices.Contains(made, chain) {
			t.Errorf("iptables has no chain %s, but %q", chain, made)
		}
	}
	n.stop()
	if page, err := n.call(nodePort(service)); err != nil || !strings.HasPrefix(page, "web ") {
		t.Errorf("while Mortise is stopped, the node port says %q, %v", page, err)
	}
	n.isReset(t)
	if left := chains(t); len(left) > 0 {
		t.Errorf("what is left of the rules is %q", left)
	}
	if out, err := n.mortise("machine", "destroy", "--data-dir", n.dir); err != nil {
		t.Errorf("machine destroy of what is reset: %v\n%s", err, out)
	}
}

// isReset resets a node that is stopped while its pods run: they and their mounts are removed, and resetting again finds nothing to do.
func (n *realNode) isReset(t *testing.T) {
	t.Helper()
	out, err := n.mortise("reset", "--yes", "--data-dir", n.dir, "--cri-socket", n.socket)
	if err != nil {
		t.Fatalf("reset: %v\n%s", err, out)
	}
	for _, want := range []string{"removed pod default/web", "removed pod default/caller", "removed network rules and interfaces"} {
		if !strings.Contains(out, want) {
			t.Errorf("reset says nothing of %q:\n%s", want, out)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if pods := filepath.Join(n.dir, "kubelet", "pods") + "/"; strings.Contains(string(mounts), pods) {
		t.Errorf("mounts of pods are left:\n%s", mounts)
	}
	if _, err := os.Stat(filepath.Join(n.dir, "store")); err != nil {
		t.Errorf("objects stay without --data: %v", err)
	}
	again, err := n.mortise("reset", "--yes", "--data-dir", n.dir, "--cri-socket", n.socket)
	if err != nil || strings.Contains(again, "removed pod default") {
		t.Errorf("reset again: %v\n%s", err, again)
	}
}

// hide makes a program's files such that nobody can run them, in the mounts of a test that is alone.
func hide(t *testing.T, name string) {
	t.Helper()
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		path := filepath.Join(dir, name)
		if _, err := exec.LookPath(path); err != nil {
			continue
		}
		if err := unix.Mount("/dev/null", path, "", unix.MS_BIND, ""); err != nil {
			t.Fatalf("hide %s: %v", path, err)
		}
	}
	if path, err := exec.LookPath(name); err == nil {
		t.Fatalf("%s is still there", path)
	}
}

// chains are iptables' that are not the kernel's own, and the rules in those that are.
func chains(t *testing.T) (out []string) {
	t.Helper()
	for _, program := range []string{"iptables-save", "ip6tables-save"} {
		text, err := exec.CommandContext(t.Context(), program).Output()
		if err != nil {
			t.Fatalf("%s: %v", program, err)
		}
		for line := range strings.Lines(string(text)) {
			words := strings.Fields(line)
			if len(words) > 1 && line[0] == ':' && words[1] == "-" {
				out = append(out, words[0][1:])
			}
			if len(words) > 1 && words[0] == "-A" && strings.ToUpper(words[1]) == words[1] && !strings.Contains(words[1], "-") {
				out = append(out, strings.TrimSpace(line))
			}
		}
	}
	return out
}
