// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNFSSourcesThatAreRefused(t *testing.T) {
	for _, c := range []struct{ server, path, want string }{
		{"files.example", "/a", "files.example:/a"},
		{"files.example.", "/a:b", "files.example.:/a:b"},
		{"10.0.0.1", "/", "10.0.0.1:/"},
		{"fd00::1", "/a", "[fd00::1]:/a"},
		{"[fd00::1]", "/a", "[fd00::1]:/a"},
		{"fe80::1%eth0", "/a", "[fe80::1%eth0]:/a"},
		{server: "-T/etc/fstab", path: "/a"}, {server: "--bind", path: "/a"}, {server: "-", path: "/a"}, {server: "", path: "/a"},
		{server: "a:b", path: "/a"}, {server: "a:/etc", path: "/a"}, {server: "/etc", path: "/a"}, {server: "a,b", path: "/a"},
		{server: "a b", path: "/a"}, {server: "a\n", path: "/a"}, {server: "a\x00", path: "/a"}, {server: "[a]", path: "/a"},
		{server: "fe80::1%-o ro", path: "/a"}, {server: "a@b", path: "/a"}, {server: "a-", path: "/a"},
		{server: "a", path: ""}, {server: "a", path: "b"}, {server: "a", path: "-o"}, {server: "a", path: "/a\nb"},
		{server: "a", path: "/a b"}, {server: "a", path: "/a\x7f"},
	} {
		got, err := nfsSource(c.server, c.path)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("server %q, path %q: %q, %v", c.server, c.path, got, err)
		}
	}
	m, _, mounted, _ := newManager(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "-T/tmp/x", Path: "/a"}}}}
	err := m.SetUp(t.Context(), pod, nil)
	if err == nil || !strings.Contains(err.Error(), `NFS server "-T/tmp/x" is not a host name`) || len(mounted) > 0 {
		t.Errorf("mounted %v, %v", mounted, err)
	}
}

// ran puts a program mount into PATH that writes down its arguments and environment, and returns what it wrote.
func ran(t *testing.T, source string, options []string) string {
	bin := t.TempDir()
	script := "#!/bin/sh\n{ for a; do echo \"arg $a\"; done; /usr/bin/env; } > " + bin + "/out\n"
	if err := os.WriteFile(filepath.Join(bin, "mount"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	t.Setenv("MORTISE_TOKEN", "secret")
	if err := (System{}).Mount(t.Context(), source, "/dir", "nfs", options); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(bin, "out"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestNFSServerIsNoOption(t *testing.T) {
	out := ran(t, "-T/etc/fstab:/a", []string{"ro"})
	if !strings.HasPrefix(out, "arg -t\narg nfs\narg -o\narg ro\narg --\narg -T/etc/fstab:/a\narg /dir\n") {
		t.Errorf("mount ran with %s", out)
	}
}

func TestMountHasACleanEnvironment(t *testing.T) {
	if out := ran(t, "a:/b", nil); strings.Contains(out, "MORTISE_TOKEN") || !strings.Contains(out, "LC_ALL=C\n") {
		t.Errorf("mount ran with %s", out)
	}
}

func TestNFSOptions(t *testing.T) {
	m, s, mounted, _ := newManager(t)
	s.pv = &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	s.pv.Spec.NFS = &corev1.NFSVolumeSource{Server: "h", Path: "/a"}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	s.pv.Spec.MountOptions = []string{"hard", "vers=4\nro"}
	if err := m.SetUp(t.Context(), pod, nil); err == nil || !strings.Contains(err.Error(), "control characters") || len(mounted) > 0 {
		t.Errorf("mounted %v, %v", mounted, err)
	}
	s.pv.Spec.MountOptions = []string{"nfsvers=4.1", "-hard"}
	if err := m.SetUp(t.Context(), pod, nil); err != nil {
		t.Fatal(err)
	}
	if got := mounted[filepath.Join(m.PodDir("u"), "volumes/kubernetes.io~nfs/pv")]; got != "nfs h:/a [-hard nfsvers=4.1]" {
		t.Errorf("mounted %q", got)
	}
}
