// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

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
)

func contents(text string) map[string]File {
	return map[string]File{"key": {Data: []byte(text), Mode: 0o644}}
}

// host is a directory of the host that no volume may change, and a check that it has not.
func host(t *testing.T) (string, func()) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "precious"), []byte("p"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, func() {
		t.Helper()
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 1 || entries[0].Name() != "precious" {
			t.Errorf("the host's directory holds %v, %v", entries, err)
		}
	}
}

// A container that could write into its volume led the node to a directory of the host, which the node then removed.
func TestWriteDoesNotFollowTheDataLink(t *testing.T) {
	outside, check := host(t)
	for _, target := range []string{outside, "../" + filepath.Base(outside), "..", "."} {
		dir := filepath.Join(filepath.Dir(outside), t.Name()+strings.NewReplacer("/", "_").Replace(target))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := Write(dir, contents("old"), nil, epoch); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Remove(filepath.Join(dir, "..data")), os.Symlink(target, filepath.Join(dir, "..data"))); err != nil {
			t.Fatal(err)
		}
		if _, err := Write(dir, contents("new"), nil, epoch); err != nil {
			t.Errorf("..data → %s: %v", target, err)
		}
		check()
		if diff := cmp.Diff(map[string]string{"key": "new"}, read(t, dir)); diff != "" {
			t.Errorf("..data → %s (-want +got)\n%s", target, diff)
		}
	}
}

// A container exchanges the volume's directories and links with links that lead out, while the node writes.
func TestWriteRaces(t *testing.T) {
	outside, check := host(t)
	dir := t.TempDir()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			entries, err := os.ReadDir(dir)
			if err != nil {
				return
			}
			for _, e := range entries {
				evil := filepath.Join(dir, "evil")
				_ = os.Symlink(outside, evil)
				_ = unix.Renameat2(unix.AT_FDCWD, evil, unix.AT_FDCWD, filepath.Join(dir, e.Name()), unix.RENAME_EXCHANGE)
			}
		}
	}()
	for i := range 100 {
		_, _ = Write(dir, contents(strings.Repeat("x", i)), nil, epoch) // it may fail, and be tried again
	}
	close(stop)
	<-stopped
	check()
	if err := os.RemoveAll(filepath.Join(dir, "evil")); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(dir, contents("last"), nil, epoch); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"key": "last"}, read(t, dir)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestWriteRepairsWhatContainersMade(t *testing.T) {
	outside, check := host(t)
	for name, spoil := range map[string]func(dir, stamp string) error{
		"a directory for ..data": func(dir, _ string) error {
			return errors.Join(os.Remove(dir+"/..data"), os.MkdirAll(dir+"/..data/full", 0o777))
		},
		"a FIFO for ..data": func(dir, _ string) error {
			return errors.Join(os.Remove(dir+"/..data"), unix.Mkfifo(dir+"/..data", 0o666))
		},
		"a directory for ..data_tmp": func(dir, _ string) error { return os.MkdirAll(dir+"/..data_tmp/full", 0o777) },
		"a link out for a key": func(dir, _ string) error {
			return errors.Join(os.Remove(dir+"/key"), os.Symlink(outside+"/precious", dir+"/key"))
		},
		"a directory for a key": func(dir, _ string) error {
			return errors.Join(os.Remove(dir+"/key"), os.MkdirAll(dir+"/key/full", 0o777))
		},
		"a FIFO for a file": func(_, stamp string) error {
			return errors.Join(os.Remove(stamp+"/key"), unix.Mkfifo(stamp+"/key", 0o644))
		},
		"a link out for a file": func(_, stamp string) error {
			return errors.Join(os.Remove(stamp+"/key"), os.Symlink(outside+"/precious", stamp+"/key"))
		},
		"a huge file": func(_, stamp string) error { return os.Truncate(stamp+"/key", 1<<40) },
		"a link out for the directory": func(dir, stamp string) error {
			return errors.Join(os.RemoveAll(stamp), os.Symlink(outside, stamp))
		},
		"a directory for all to write": func(dir, _ string) error { return os.Chmod(dir, 0o777) },
	} {
		dir := t.TempDir()
		if _, err := Write(dir, contents("text"), nil, epoch); err != nil {
			t.Fatal(err)
		}
		stamp, err := os.Readlink(dir + "/..data")
		if err != nil {
			t.Fatal(err)
		}
		if err := spoil(dir, filepath.Join(dir, stamp)); err != nil && !strings.Contains(err.Error(), "file too large") {
			t.Fatal(err)
		}
		if _, err := Write(dir, contents("text"), nil, epoch); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		check()
		if diff := cmp.Diff(map[string]string{"key": "text"}, read(t, dir)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
		}
	}
}

// Nothing is left of writes that were interrupted, and of files that somebody else made.
func TestWriteSweeps(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(
		os.MkdirAll(dir+"/..2025_01_01_00_00_00.1/key", 0o755),
		os.WriteFile(dir+"/foreign", nil, 0o644),
		os.Symlink("..data/gone", dir+"/gone"),
		os.Mkdir(dir+"/of-a-subpath", 0o755),
	); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(dir, contents("text"), nil, epoch); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if !stampName.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	if diff := cmp.Diff([]string{"..data", "key", "of-a-subpath"}, names); diff != "" || len(entries) != 4 {
		t.Errorf("%d entries (-want +got)\n%s", len(entries), diff)
	}
}

// The open of a FIFO waits for a writer, and would hold up the pod for good.
func TestSubPathsAreNotOpened(t *testing.T) {
	m, _, mounted, _ := newManager(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	if err := m.SetUp(t.Context(), pod, nil); err != nil {
		t.Fatal(err)
	}
	volume := filepath.Join(m.PodDir("u"), "volumes/kubernetes.io~empty-dir/v")
	if err := errors.Join(
		unix.Mkfifo(filepath.Join(volume, "fifo"), 0o600),
		os.Symlink("fifo", filepath.Join(volume, "link")),
		unix.Mknod(filepath.Join(volume, "socket"), unix.S_IFSOCK|0o600, 0),
	); err != nil {
		t.Fatal(err)
	}
	for sub, want := range map[string]string{"fifo": "fifo", "link": "fifo", "socket": "socket"} {
		c := &corev1.Container{Name: sub, VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/m", SubPath: sub}}}
		got, err := m.Mounts(t.Context(), pod, c, nil, nil)
		if err != nil {
			t.Errorf("%s: %v", sub, err)
		} else if bound := mounted[got[0].HostPath]; bound != filepath.Join(volume, want) {
			t.Errorf("%s: bound %q", sub, bound)
		}
	}
}
