// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package hostpath

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/disktest"
	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

func newManager(t *testing.T) (*volumes.Manager, *volumetest.Sources, volumetest.Kernel, *clocktesting.FakeClock) {
	return volumetest.New(t, New)
}

func claimOf(pv corev1.PersistentVolumeSource) (corev1.VolumeSource, *corev1.PersistentVolume) {
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: pv}}
}

func TestHostPathsOfAllSorts(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.Mkdir(at("dir"), 0o755), os.WriteFile(at("file"), nil, 0o600),
		unix.Mknod(at("socket"), unix.S_IFSOCK|0o600, 0)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		kind corev1.HostPathType
		path string
		want string // of the error; empty: none
		left fs.FileMode
	}{
		{corev1.HostPathUnset, at("made1"), "", fs.ModeDir | 0o755},
		{corev1.HostPathUnset, at("file"), "", 0o600},
		{corev1.HostPathDirectoryOrCreate, at("made2"), "", fs.ModeDir | 0o755},
		{corev1.HostPathDirectoryOrCreate, at("file"), "is not a directory", 0o600},
		{corev1.HostPathFileOrCreate, at("made3"), "", 0o644},
		{corev1.HostPathFileOrCreate, at("file"), "", 0o600},
		{corev1.HostPathFileOrCreate, at("dir"), "is not a file", fs.ModeDir | 0o755},
		{corev1.HostPathFileOrCreate, at("none/file"), "make hostPath file", 0},
		{corev1.HostPathSocket, at("socket"), "", fs.ModeSocket | 0o600},
		{corev1.HostPathFile, at("none"), "is not a file", 0},
		{corev1.HostPathSocket, at("none"), "is not a socket file", 0},
		{corev1.HostPathCharDev, at("none"), "is not a character device", 0},
		{corev1.HostPathCharDev, at("file"), "is not a character device", 0o600},
		{corev1.HostPathBlockDev, at("none"), "is not a block device", 0},
		{corev1.HostPathBlockDev, at("file"), "is not a block device", 0o600},
		{corev1.HostPathUnset, at("file/below"), "look at hostPath", 0},
	} {
		err := check(&corev1.HostPathVolumeSource{Path: c.path, Type: &c.kind})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s as %q: %v, want %q", c.path, c.kind, err, c.want)
		}
		info, err := os.Stat(c.path)
		if (err == nil) != (c.left != 0) || err == nil && info.Mode() != c.left {
			t.Errorf("%s as %q: left %v, %v", c.path, c.kind, info, err)
		}
	}
}

func TestBlockDevices(t *testing.T) {
	device, block := filepath.Join(t.TempDir(), "device"), corev1.HostPathBlockDev
	disktest.OnThread(t, func() error {
		if err := unix.Mknod(device, unix.S_IFBLK|0o600, int(unix.Mkdev(240, 0))); err != nil {
			return err
		}
		return check(&corev1.HostPathVolumeSource{Path: device, Type: &block})
	})
}

func TestHostPathTypes(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		kind corev1.HostPathType
		path string
		ok   bool
	}{
		{corev1.HostPathUnset, dir, true}, {corev1.HostPathDirectory, dir, true}, {corev1.HostPathDirectory, file, false},
		{corev1.HostPathDirectory, dir + "/no", false}, {corev1.HostPathDirectoryOrCreate, dir + "/made", true},
		{corev1.HostPathFile, file, true}, {corev1.HostPathFile, dir, false}, {corev1.HostPathFileOrCreate, dir + "/madefile", true},
		{corev1.HostPathSocket, file, false}, {corev1.HostPathCharDev, "/dev/null", true}, {corev1.HostPathBlockDev, "/dev/null", false},
	} {
		if err := check(&corev1.HostPathVolumeSource{Path: c.path, Type: &c.kind}); (err == nil) != c.ok {
			t.Errorf("%s as %q: %v", c.path, c.kind, err)
		}
	}
}

// The type of a hostPath is checked where a claim leads to it, too.
func TestClaimedHostPath(t *testing.T) {
	m, s, _, _ := newManager(t)
	file := &corev1.HostPathVolumeSource{Path: "/proc/self/stat", Type: new(corev1.HostPathDirectory)}
	source, pv := claimOf(corev1.PersistentVolumeSource{HostPath: file})
	s.PV = pv
	if err := m.SetUp(t.Context(), volumetest.Pod(source), nil); err == nil || !strings.Contains(err.Error(), "is not a directory") {
		t.Errorf("a claim of a hostPath of another type: %v", err)
	}
}
