// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/version"
)

// releaseRoot is the folder of a release's node: its volumes have paths. It exists on every machine, and a test has something of its own
// there.
const releaseRoot = "/mnt"

// newReleaseNode is the node of a release that is about to be on a host of its own, which has the name of the release's.
func newReleaseNode(t *testing.T) *realNode {
	t.Helper()
	return newLAN(t, "switch", "192.168.70.").newHost("release", 1).newNodeIn(filepath.Join(releaseRoot, "data"), map[string]bool{})
}

// serveRelease starts the server of a release's node.
func (n *realNode) serveRelease() {
	n.serve("--encryption-provider-config", filepath.Join(releaseRoot, "encryption.yaml"))
	awaitNode(n.t, n.c, "release", corev1.ConditionTrue)
}

// TestNodeOfRelease starts this version on the data directory of a node of each release, whose machine has started anew: its pods run again
// with what is in their volumes, and nothing of them is left after their end.
func TestNodeOfRelease(t *testing.T) {
	if !alone(t) {
		return
	}
	for i, archive := range archives(t, "node") {
		if i > 0 {
			t.Fatal("this test has one host: let each archive have a process of its own")
		}
		try(t, unix.Mount("tmpfs", releaseRoot, "tmpfs", 0, "mode=755"))
		was := unpack(t, archive, releaseRoot)
		n := newReleaseNode(t)
		n.serveRelease()
		for name, before := range was.Pods {
			was := before.Status.ContainerStatuses[0]
			now := n.pod(t, name, func(p *corev1.Pod) bool {
				return ready(*p) && p.Status.ContainerStatuses[0].ContainerID != was.ContainerID
			})
			if now.UID != before.UID || now.Status.ContainerStatuses[0].RestartCount < was.RestartCount {
				t.Errorf("pod %s was\n%s\nand is\n%s", name, text(before), text(now))
			}
		}
		if got := n.inside(t, "volumes", "cat /empty/mine /settings/color /password/password; grep -c upgrade /labels/labels"); got !=
			"mine\nblueopen sesame1\n" {
			t.Errorf("the volumes hold %q", got)
		}
		if got := n.inside(t, "db-0", "cat /data/name; wc -l </data/starts"); got != "db-0\n2\n" {
			t.Errorf("the data of db-0 are %q", got)
		}
		n.inside(t, "volumes", "while [ \"$(cat /settings/color)\" != blue ]; do sleep 0.1; done; wget -q -O - http://web | grep -q ^web-")
		n.kubectl("delete", "deployment/web", "statefulset/db", "--cascade=foreground", "--timeout=100s")
		n.kubectl("delete", "pvc", "--all", "--timeout=60s")
		n.deleteAll(t)
		if left, err := os.ReadDir(filepath.Join(n.dir, "kubelet", "pods")); err != nil || len(left) > 0 {
			t.Errorf("left of pods: %v, %v", left, err)
		}
		n.stop()
	}
}

// TestMakeReleaseNode makes the archive of a node.
func TestMakeReleaseNode(t *testing.T) {
	to := os.Getenv(makeRelease)
	if to == "" {
		t.Log("scripts/release/data makes the archives")
		return
	}
	if !alone(t) {
		return
	}
	try(t, unix.Mount("tmpfs", releaseRoot, "tmpfs", 0, "mode=755"))
	writeGuideFile(t, filepath.Join(releaseRoot, "encryption.yaml"), releaseEncryption)
	n := newReleaseNode(t)
	n.serveRelease()
	n.apply(t, upgradeDefinition)
	n.kubectl("wait", "--for=condition=Established", "crd/boxes.upgrade.example.com", "--timeout=60s")
	n.apply(t, upgradeObjects)
	n.apply(t, strings.Replace(databaseManifest, "replicas: 2", "replicas: 1", 1))
	n.kubectl("rollout", "status", "deployment/web", "--timeout=100s")
	n.kubectl("rollout", "status", "statefulset/db", "--timeout=100s")
	n.ready(t, "volumes")
	n.pod(t, "restarted", func(p *corev1.Pod) bool { return ready(*p) && p.Status.ContainerStatuses[0].RestartCount == 1 })
	n.inside(t, "volumes", "echo mine > /empty/mine")
	pods, err := n.c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	try(t, err)
	r := release{Version: version.Mortise, Pods: map[string]corev1.Pod{}}
	for _, p := range pods.Items {
		r.Pods[p.Name] = p
	}
	n.kill()
	pack(t, filepath.Join(to, version.Mortise+"-node.tar.gz"), releaseRoot, r)
}
