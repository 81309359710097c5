// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNFS mounts directories of servers, once, and nothing is left where that fails.
func TestNFS(t *testing.T) {
	share := &corev1.NFSVolumeSource{Server: "files.example", Path: "/exports/a"}
	claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}
	readOnly := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c", ReadOnly: true}}
	pv := func(annotation string, options ...string) *corev1.PersistentVolume {
		out := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
			MountOptions: options, PersistentVolumeSource: corev1.PersistentVolumeSource{NFS: share},
		}}
		if annotation != "" {
			out.Annotations = map[string]string{corev1.MountOptionAnnotation: annotation}
		}
		return out
	}
	for name, c := range map[string]struct {
		source  corev1.VolumeSource
		pv      *corev1.PersistentVolume
		dir     string
		mounted string // empty: it cannot be
	}{
		"of a pod":                 {corev1.VolumeSource{NFS: share}, nil, "v", "nfs files.example:/exports/a []"},
		"read alone":               {corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "10.0.0.1", Path: "/a", ReadOnly: true}}, nil, "v", "nfs 10.0.0.1:/a [ro]"},
		"by IPv6":                  {corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "fd00::1", Path: "/a"}}, nil, "v", "nfs [fd00::1]:/a []"},
		"claimed":                  {claim, pv("", "hard", "nfsvers=4.1", "hard"), "pv", "nfs files.example:/exports/a [hard nfsvers=4.1]"},
		"claimed to be read":       {readOnly, pv("", "nfsvers=3"), "pv", "nfs files.example:/exports/a [nfsvers=3 ro]"},
		"with the old annotation":  {claim, pv("soft,bg", "hard"), "pv", "nfs files.example:/exports/a [bg soft]"},
		"of a server that is gone": {corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "gone", Path: "/a"}}, nil, "v", ""},
	} {
		m, s, mounted, _ := newManager(t)
		s.pv = c.pv
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "u"}}
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: c.source}}
		dir := filepath.Join(m.PodDir("u"), "volumes/kubernetes.io~nfs", c.dir)
		err := m.SetUp(t.Context(), pod, nil)
		if c.mounted == "" {
			if err == nil || !strings.Contains(err.Error(), `MountVolume.SetUp failed for volume "v" : mount failed: no such server`) {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: the directory is left: %v", name, err)
			}
			continue
		}
		if err != nil || mounted[dir] != c.mounted || len(mounted) != 1 {
			t.Errorf("%s: mounted %v, want %q at %s; %v", name, mounted, c.mounted, dir, err)
		}
		if path, err := m.Path(t.Context(), pod, &pod.Spec.Volumes[0]); err != nil || path != dir {
			t.Errorf("%s: lies at %s, %v", name, path, err)
		}
		mounted[dir] = "as it was"
		if err := m.SetUp(t.Context(), pod, nil); err != nil || mounted[dir] != "as it was" {
			t.Errorf("%s: mounted again: %v, %v", name, mounted, err)
		}
		if err := m.TearDown("u"); err != nil || len(mounted) != 0 {
			t.Errorf("%s: afterwards %v, %v", name, mounted, err)
		}
	}
}

// TestMountSaysWhatMountSays: the program's arguments and its words are in the error, and it ends when nobody waits for it any more.
func TestMountSaysWhatMountSays(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\necho \"$@\" >> " + dir + "/asked\ncase $4 in slow:*) sleep 60;; bad:*) echo no such share >&2; exit 32;; esac\n"
	if err := os.WriteFile(filepath.Join(dir, "mount"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	if err := (System{}).Mount(t.Context(), "good:/a", "/mnt", "nfs", []string{"ro", "soft"}); err != nil {
		t.Error(err)
	}
	if asked, err := os.ReadFile(filepath.Join(dir, "asked")); err != nil || string(asked) != "-t nfs -o ro,soft -- good:/a /mnt\n" {
		t.Errorf("asked %q, %v", asked, err)
	}
	err := System{}.Mount(t.Context(), "bad:/a", "/mnt", "nfs", nil)
	if want := "mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t nfs bad:/a /mnt\nOutput: no such share\n"; err == nil || err.Error() != want {
		t.Errorf("%v, want %q", err, want)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := (System{}).Mount(ctx, "slow:/a", "/mnt", "nfs", nil); err == nil {
		t.Error("it did not end")
	}
}
