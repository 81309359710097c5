// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
)

// The files of a volume get the group and the bits; those of links that lead out do not. The root is changed last, so that it
// shows whether all is done.
func TestGiveToGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: giving files away needs root")
	}
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "precious")
	for _, err := range []error{
		os.WriteFile(outside, nil, 0o600), os.Symlink(outside, filepath.Join(dir, "link")),
		os.Symlink(filepath.Dir(outside), filepath.Join(dir, "up")),
		os.MkdirAll(filepath.Join(dir, "a/b"), 0o700), os.WriteFile(filepath.Join(dir, "a/b/file"), nil, 0o600),
		os.WriteFile(filepath.Join(dir, "program"), nil, 0o700), os.Chmod(filepath.Join(dir, "program"), 0o700|os.ModeSetuid),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 * batch {
		if err := os.WriteFile(filepath.Join(dir, "a", fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g := &giver{group: 1234, files: 0o660}
	if g.done(dir) {
		t.Error("done before")
	}
	if err := g.give(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{
		"": os.ModeDir | os.ModeSetgid | 0o775, "a/b": os.ModeDir | os.ModeSetgid | 0o770, "a/b/file": 0o660, "program": os.ModeSetuid | 0o760,
		fmt.Sprint("a/", 3*batch-1): 0o660,
	} {
		info, err := os.Lstat(filepath.Join(dir, path))
		if err != nil {
			t.Fatal(err)
		}
		if gid := info.Sys().(*syscall.Stat_t).Gid; gid != 1234 || info.Mode() != want && path != "" {
			t.Errorf("%s: group %d, mode %v, want %v", path, gid, info.Mode(), want)
		}
	}
	if info, err := os.Stat(outside); err != nil || info.Sys().(*syscall.Stat_t).Gid == 1234 || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if !g.done(dir) {
		t.Error("not done after")
	}
}

// The policy of the CSIDriver decides who gives files to the group.
func TestGroupPolicy(t *testing.T) {
	policy := func(p storagev1.FSGroupPolicy) *storagev1.CSIDriver {
		return &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{FSGroupPolicy: &p}}
	}
	for name, c := range map[string]struct {
		v    volume
		want bool
	}{
		"by default, without a file system": {volume{}, false},
		"by default, for one node":          {volume{fsType: "ext4", ephemeral: true}, true},
		"none":                              {volume{fsType: "ext4", ephemeral: true, class: policy(storagev1.NoneFSGroupPolicy)}, false},
		"file":                              {volume{class: policy(storagev1.FileFSGroupPolicy)}, true},
		"file, read-only":                   {volume{readOnly: true, class: policy(storagev1.FileFSGroupPolicy)}, false},
		"by default, for one node, claimed": {volume{fsType: "ext4", spec: claimedAs(corev1.ReadWriteOnce)}, true},
		"by default, for one pod, claimed":  {volume{fsType: "ext4", spec: claimedAs(corev1.ReadWriteOncePod)}, true},
		"by default, for many, claimed":     {volume{fsType: "ext4", spec: claimedAs(corev1.ReadWriteMany)}, false},
		"file, by the driver":               {volume{able: able{group: true}, class: policy(storagev1.FileFSGroupPolicy)}, false},
	} {
		if got := c.v.grouped(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

var groupFiles = flag.Int("group-files", 20_000, "how many files BenchmarkGiveToGroup gives to a group")

// BenchmarkGiveToGroup gives files to a group: such that belong to another one, such that are right already, and a volume whose root is
// right with OnRootMismatch. TMPDIR chooses the file system. docs/performance.md has the figures of a million files.
func BenchmarkGiveToGroup(b *testing.B) {
	dir := b.TempDir()
	for i := range *groupFiles {
		path := filepath.Join(dir, fmt.Sprint(i/1000))
		if i%1000 == 0 {
			if err := os.Mkdir(path, 0o700); err != nil {
				b.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(path, fmt.Sprint(i)), nil, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	group := 1
	run := func(name string, do func(g *giver) error) {
		b.Run(name, func(b *testing.B) {
			begun := processorTime(b)
			for b.Loop() {
				if err := do(&giver{group: group, files: 0o660}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((processorTime(b)-begun).Milliseconds())/float64(b.N), "cpu-ms/op")
		})
	}
	run("others", func(*giver) error {
		group++
		return (&giver{group: group, files: 0o660}).give(b.Context(), dir)
	})
	run("right", func(g *giver) error { return g.give(b.Context(), dir) })
	run("OnRootMismatch", func(g *giver) error {
		if !g.done(dir) {
			return errors.New("not done")
		}
		return nil
	})
}

// processorTime returns how long the process has run on processors.
func processorTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// claimedAs is a claimed volume with an access mode.
func claimedAs(mode corev1.PersistentVolumeAccessMode) *volumes.Spec {
	return &volumes.Spec{PersistentVolume: persistentVolume(mode)}
}
