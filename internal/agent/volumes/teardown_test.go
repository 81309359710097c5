// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/disktest"
	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

// unmounting writes down what is unmounted, or fails to unmount it.
type unmounting struct {
	volumetest.Kernel
	asked []string
	stuck map[string]error // nil: it says that it has unmounted
}

func (u *unmounting) Unmount(dir string) error {
	u.asked = append(u.asked, dir)
	if err, ok := u.stuck[dir]; ok {
		return err
	}
	return u.Kernel.Unmount(dir)
}

// emptied is a manager with a pod whose containers left links, a FIFO and directories in an emptyDir.
func emptied(t *testing.T, outside string) (*volumes.Manager, *unmounting, string) {
	m, _, mounted, _ := newManager(t)
	u := &unmounting{Kernel: mounted, stuck: map[string]error{}}
	m.Mounter = u
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	if err := m.SetUp(t.Context(), pod, nil); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(m.PodDir("u"), "volumes/kubernetes.io~empty-dir/v")
	if err := errors.Join(
		os.Symlink(outside, filepath.Join(dir, "dir")),
		os.Symlink(filepath.Join(outside, "precious"), filepath.Join(dir, "file")),
		unix.Mkfifo(filepath.Join(dir, "fifo"), 0o666),
		os.MkdirAll(filepath.Join(dir, "a/b"), 0o755),
		os.Symlink(outside, filepath.Join(dir, "a/b/up")),
	); err != nil {
		t.Fatal(err)
	}
	return m, u, dir
}

func TestTearDown(t *testing.T) {
	outside, check := disktest.HostDir(t)
	m, u, dir := emptied(t, outside)
	u.Kernel[dir], u.Kernel[dir+"/a"], u.Kernel[m.PodDir("other")+"/x"] = "tmpfs", "tmpfs", "tmpfs"
	if err := m.TearDown(t.Context(), "u"); err != nil {
		t.Fatal(err)
	}
	check()
	if diff := cmp.Diff([]string{dir + "/a", dir}, u.asked); diff != "" {
		t.Errorf("unmounted, inner ones first (-want +got)\n%s", diff)
	}
	if _, err := os.Lstat(m.PodDir("u")); !os.IsNotExist(err) {
		t.Errorf("the pod's directory is left: %v", err)
	}
	if err := m.TearDown(t.Context(), "u"); err != nil {
		t.Errorf("once more: %v", err)
	}
}

// What lies under a mount that is still there is somebody's data.
func TestTearDownLeavesMounts(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"unmounting fails":    {unix.EPERM, "operation not permitted"},
		"it is mounted again": {nil, "still mounted below"},
	} {
		outside, check := disktest.HostDir(t)
		m, u, dir := emptied(t, outside)
		u.Kernel[dir+"/a"] = "nfs"
		u.stuck[dir+"/a"] = c.err
		if err := m.TearDown(t.Context(), "u"); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "%!") {
			t.Errorf("%s: %v", name, err)
		}
		check()
		for _, left := range []string{"a/b", "dir", "fifo"} {
			if _, err := os.Lstat(filepath.Join(dir, left)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
