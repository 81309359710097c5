// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// volumes mounts what is on the node and on servers into pods, as their types and modes say.
func volumes(t *testing.T, n *realNode) {
	home := filepath.Join(filepath.Dir(n.dir), "volumes")
	if err := os.MkdirAll(home, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Run("host paths", func(t *testing.T) { hostPaths(t, n, home) })
	t.Run("propagation", func(t *testing.T) { propagates(t, n, home) })
	t.Run("NFS", func(t *testing.T) { networkFiles(t, n, home) })
	t.Run("fields that change", func(t *testing.T) { fieldsChange(t, n) })
	t.Run("hostile", func(t *testing.T) { hostileVolumes(t, n, home) })
}

// mounting is a pod with volumes, each mounted under its name.
func mounting(name string, volumes map[string]corev1.VolumeSource) *corev1.Pod {
	p := idlePod(name)
	for v, source := range volumes {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: v, VolumeSource: source})
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: v, MountPath: "/" + v})
	}
	return p
}

func hostPath(path string, kind corev1.HostPathType) corev1.VolumeSource {
	return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &kind}}
}

func hostPaths(t *testing.T, n *realNode, home string) {
	n.write(t, filepath.Join(home, "file"), "of the node\n")
	n.create(t,
		mounting("paths", map[string]corev1.VolumeSource{
			"made": hostPath(filepath.Join(home, "made"), corev1.HostPathDirectoryOrCreate),
			"file": hostPath(filepath.Join(home, "file"), corev1.HostPathFile),
			"new":  hostPath(filepath.Join(home, "new"), corev1.HostPathFileOrCreate), "null": hostPath("/dev/null", corev1.HostPathCharDev),
		}),
		mounting("no-directory", map[string]corev1.VolumeSource{"v": hostPath(filepath.Join(home, "file"), corev1.HostPathDirectory)}),
		mounting("no-file", map[string]corev1.VolumeSource{"v": hostPath(filepath.Join(home, "none"), corev1.HostPathFile)}),
		mounting("no-socket", map[string]corev1.VolumeSource{"v": hostPath(filepath.Join(home, "file"), corev1.HostPathSocket)}),
		mounting("no-device", map[string]corev1.VolumeSource{"v": hostPath("/dev/null", corev1.HostPathBlockDev)}),
	)
	n.ready(t, "paths")
	if got := n.inside(t, "paths", "cat /file; echo in >> /made/f; echo in >> /new; [ -c /null ] && echo device"); got != "of the node\ndevice\n" {
		t.Errorf("it sees %q", got)
	}
	for _, name := range []string{"made/f", "new"} {
		if got, err := os.ReadFile(filepath.Join(home, name)); err != nil || string(got) != "in\n" {
			t.Errorf("%s on the node is %q, %v", name, got, err)
		}
	}
	for name, words := range map[string]string{
		"no-directory": "is not a directory", "no-file": "is not a file", "no-socket": "is not a socket file",
		"no-device": "is not a block device",
	} {
		n.hasEvent(t, name, "FailedMount", "hostPath type check failed: ")
		n.hasEvent(t, name, "FailedMount", words)
	}
}

// propagates mounts something in a container, on the node, and looks who sees it.
func propagates(t *testing.T, n *realNode, home string) {
	dir := filepath.Join(home, "shared")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	pod := func(name string, mode corev1.MountPropagationMode) *corev1.Pod {
		p := mounting(name, map[string]corev1.VolumeSource{"v": hostPath(dir, corev1.HostPathDirectory)})
		p.Spec.Containers[0].VolumeMounts[0].MountPropagation = &mode
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(mode == corev1.MountPropagationBidirectional)}
		return p
	}
	n.create(t, pod("gives", corev1.MountPropagationBidirectional), pod("takes", corev1.MountPropagationHostToContainer),
		pod("alone", corev1.MountPropagationNone))
	n.ready(t, "gives", "takes", "alone")
	n.inside(t, "gives", "mkdir /v/m && mount -t tmpfs none /v/m && echo there > /v/m/f")
	for name, want := range map[string]string{"gives": "there\n", "takes": "there\n", "alone": ""} {
		if got := n.inside(t, name, "cat /v/m/f 2>/dev/null; true"); got != want {
			t.Errorf("%s sees %q, want %q", name, got, want)
		}
	}
	if got, err := os.ReadFile(filepath.Join(dir, "m/f")); err != nil || string(got) != "there\n" {
		t.Errorf("the node sees %q, %v", got, err)
	}
	n.inside(t, "gives", "umount /v/m")
}

// networkFiles has mount(8) mount shares of a server. The kernel here knows no NFS: what stands in for mount(8)'s helper binds a directory
// of the test's. The node, mount(8), the containers and what is left are real.
func networkFiles(t *testing.T, n *realNode, home string) {
	exports := filepath.Join(home, "exports")
	for _, dir := range []string{"a", "b", "sbin", "work"} {
		if err := os.MkdirAll(filepath.Join(exports, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.write(t, filepath.Join(exports, "a/f"), "of the server\n")
	n.write(t, filepath.Join(exports, "sbin/mount.nfs"), `#!/bin/sh
echo "$@" >> `+exports+`/asked
case $1 in files.example:*) ;; *) echo "mount.nfs: Failed to resolve server ${1%%:*}" >&2; exit 32;; esac
mount --bind `+exports+`"${1#*:}" "$2" || exit 32
case "$*" in *" ro"*|*,ro*) mount -o remount,bind,ro "$2";; esac
`)
	// In the test's own namespace of mounts, the programs of the system have one more.
	const programs = "/usr/sbin"
	if err := unix.Mount("overlay", programs, "overlay", 0,
		"lowerdir="+programs+",upperdir="+exports+"/sbin,workdir="+exports+"/work"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(programs, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", "command -v mount && ls -l /sbin/mount.nfs").CombinedOutput(); err != nil {
		t.Fatalf("mount(8) has no helper: %v\n%s", err, out)
	}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	if _, err := n.c.CoreV1().PersistentVolumes().Create(t.Context(),
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "share"}, Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, MountOptions: []string{"nfsvers=4.1"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "files.example", Path: "/b"}},
		}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.c.CoreV1().PersistentVolumeClaims("default").Create(t.Context(),
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "share"}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: size}, VolumeName: "share", StorageClassName: new(""),
		}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	nfs := func(server string, readOnly bool) corev1.VolumeSource {
		return corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: server, Path: "/a", ReadOnly: readOnly}}
	}
	n.create(t,
		mounting("shares", map[string]corev1.VolumeSource{
			"a": nfs("files.example", true), "b": {PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "share"}},
		}),
		mounting("lost", map[string]corev1.VolumeSource{"a": nfs("nowhere.example", false)}),
	)
	p := n.ready(t, "shares")
	if got := n.inside(t, "shares", "cat /a/f; echo x > /a/g 2>/dev/null || echo refused; echo in > /b/f"); got != "of the server\nrefused\n" {
		t.Errorf("it sees %q", got)
	}
	if got, err := os.ReadFile(filepath.Join(exports, "b/f")); err != nil || string(got) != "in\n" {
		t.Errorf("the server has %q, %v", got, err)
	}
	asked, err := os.ReadFile(filepath.Join(exports, "asked"))
	if err != nil || !strings.Contains(string(asked), "files.example:/b ") || !strings.Contains(string(asked), "nfsvers=4.1") ||
		!strings.Contains(string(asked), "/pods/"+string(p.UID)+"/volumes/kubernetes.io~nfs/share") {
		t.Errorf("mount was asked %q, %v", asked, err)
	}
	n.hasEvent(t, "lost", "FailedMount", `MountVolume.SetUp failed for volume "a" : mount failed: exit status 32`)
	n.hasEvent(t, "lost", "FailedMount", "Output: mount.nfs: Failed to resolve server nowhere.example")
	n.deleteAll(t)
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), "kubernetes.io~nfs") {
		t.Errorf("shares are still mounted: %v\n%s", err, mounts)
	}
	for what, remove := range map[string]func() error{
		"claim": func() error {
			return n.c.CoreV1().PersistentVolumeClaims("default").Delete(t.Context(), "share", metav1.DeleteOptions{})
		},
		"volume": func() error {
			return n.c.CoreV1().PersistentVolumes().Delete(t.Context(), "share", metav1.DeleteOptions{})
		},
	} {
		if err := remove(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// fieldsChange gives a pod another annotation, and has the container see it whole.
func fieldsChange(t *testing.T, n *realNode) {
	p := mounting("fields", map[string]corev1.VolumeSource{
		"info": {DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "a/color", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['color']"}},
			{Path: "cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "c", Resource: "limits.cpu",
				Divisor: resource.MustParse("1m")}},
		}}}})
	p.Annotations = map[string]string{"color": "red"}
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m")}
	n.create(t, p)
	n.ready(t, "fields")
	before := n.inside(t, "fields", "cat /info/a/color /info/cpu; readlink /info/..data")
	if !strings.HasPrefix(before, "red250") {
		t.Errorf("it sees %q", before)
	}
	if _, err := n.c.CoreV1().Pods("default").Patch(t.Context(), "fields", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"color":"blue"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	after := n.inside(t, "fields", "while [ $(cat /info/a/color) = red ]; do :; done; cat /info/a/color /info/cpu; readlink /info/..data")
	_, was, _ := strings.Cut(before, "250")
	if _, is, _ := strings.Cut(after, "250"); !strings.HasPrefix(after, "blue250") || is == was {
		t.Errorf("it sees %q after %q", after, before)
	}
}
