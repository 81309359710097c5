// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/disktest"
	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

// part is a container with a part of a volume.
func part(sub string) *corev1.Container {
	return &corev1.Container{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/m", SubPath: sub}}}
}

// hosting is a pod with a directory of the host.
func hosting(dir string) *corev1.Pod {
	return volumetest.Pod(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}})
}

// A container whose part of a volume cannot be had is not made.
func TestSubPathsThatCannotBe(t *testing.T) {
	points := func(m *volumes.Manager) string { return filepath.Join(m.PodDir("u"), "volume-subpaths") }
	noVolume := func(_ *volumes.Manager, dir string) error { return os.RemoveAll(dir) }
	noPoints := func(m *volumes.Manager, _ string) error { return os.WriteFile(points(m), nil, 0o600) }
	aDirectory := func(m *volumes.Manager, _ string) error { return os.MkdirAll(points(m)+"/v/c/0", 0o755) }
	for name, c := range map[string]struct {
		sub    string
		spoil  func(m *volumes.Manager, dir string) error
		refuse string
		want   string
	}{
		"no volume":              {"dir", noVolume, "", `open volume "v"`},
		"below a file":           {"file/sub", nil, "", `failed to prepare subPath for volumeMount "v" of container "c"`},
		"a link to nothing":      {"dangling", nil, "", `make subPath "dangling" of volume "v"`},
		"no place for points":    {"dir", noPoints, "", "make directory for subPath"},
		"a directory for a file": {"file", aDirectory, "", "make mount point for subPath"},
		"a refusal":              {"dir", nil, "bind", `bind subPath "dir" of volume "v": refused`},
	} {
		dir := t.TempDir()
		m, _, mounted, _ := newManager(t)
		m.Mounter = refusing{mounted, c.refuse}
		pod := hosting(dir)
		if err := errors.Join(
			m.SetUp(t.Context(), pod, nil), os.Mkdir(dir+"/dir", 0o755), os.WriteFile(dir+"/file", nil, 0o600), os.Symlink("none", dir+"/dangling"),
		); err != nil {
			t.Fatal(err)
		}
		if c.spoil != nil {
			if err := c.spoil(m, dir); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := m.Mounts(t.Context(), pod, part(c.sub), nil, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

// What the node makes in a volume is for all in an emptyDir, and for the node's users elsewhere.
func TestModesOfSubPaths(t *testing.T) {
	was := unix.Umask(0o027)
	defer unix.Umask(was)
	empty := volumetest.Pod(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	for want, pod := range map[os.FileMode]*corev1.Pod{0o777: empty, 0o750: hosting(t.TempDir())} {
		m, _, _, _ := newManager(t)
		if err := m.SetUp(t.Context(), pod, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Mounts(t.Context(), pod, part("new"), nil, nil); err != nil {
			t.Fatal(err)
		}
		dir, err := m.Path(t.Context(), pod, &pod.Spec.Volumes[0])
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(filepath.Join(dir, "new")); err != nil || info.Mode().Perm() != want {
			t.Errorf("%v, %v, want %v", info.Mode(), err, want)
		}
	}
}

// A volume on a file system that is read-only has no new parts.
func TestSubPathsOfAReadOnlyVolume(t *testing.T) {
	m, _, _, _ := newManager(t)
	dir := t.TempDir()
	disktest.OnThread(t, func() error {
		if err := errors.Join(volumes.System{}.Tmpfs(dir, 0), os.Mkdir(dir+"/old", 0o755)); err != nil {
			return err
		}
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return err
		}
		if _, err := m.Mounts(t.Context(), hosting(dir), part("old"), nil, nil); err != nil {
			return err
		}
		if _, err := m.Mounts(t.Context(), hosting(dir), part("new"), nil, nil); !errors.Is(err, unix.EROFS) {
			return errors.Join(errors.New("a part was made"), err)
		}
		return nil
	})
}

// A node lives for months, and each container that left a file open would count.
func TestSubPathsLeaveNothingOpen(t *testing.T) {
	m, _, _, _ := newManager(t)
	dir, kind := t.TempDir(), corev1.HostPathFileOrCreate
	if n := disktest.LeftOpen(t, func() {
		file := corev1.HostPathVolumeSource{Path: filepath.Join(dir, "file"), Type: &kind}
		if err := errors.Join(os.RemoveAll(file.Path), m.SetUp(t.Context(), volumetest.Pod(corev1.VolumeSource{HostPath: &file}),
			nil)); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Mounts(t.Context(), hosting(dir), part("file"), nil, nil); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%d files", n)
	}
}

func TestPropagation(t *testing.T) {
	for mode, want := range map[corev1.MountPropagationMode]runtimeapi.MountPropagation{
		corev1.MountPropagationNone:            runtimeapi.MountPropagation_PROPAGATION_PRIVATE,
		corev1.MountPropagationHostToContainer: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
		corev1.MountPropagationBidirectional:   runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL,
	} {
		m, _, _, _ := newManager(t)
		c := part("")
		c.VolumeMounts[0].MountPropagation = &mode
		if got, err := m.Mounts(t.Context(), hosting(t.TempDir()), c, nil, nil); err != nil || got[0].Propagation != want {
			t.Errorf("%s: %v, %v", mode, got, err)
		}
	}
}

// A part of a volume that a container's earlier instance had is bound anew, and a file's is a file.
func TestSubPathsAgain(t *testing.T) {
	m, u, dir := emptied(t, t.TempDir())
	if err := os.WriteFile(filepath.Join(dir, "plain"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	pod := volumetest.Pod(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	for sub, isDir := range map[string]bool{"a": true, "plain": false, "made/here": true} {
		c := &corev1.Container{Name: strings.ReplaceAll(sub, "/", "-"),
			VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/m", SubPath: sub}}}
		u.asked = nil
		for range 2 {
			mounts, err := m.Mounts(t.Context(), pod, c, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(mounts[0].HostPath); err != nil || info.IsDir() != isDir {
				t.Errorf("%s: mount point %v, %v", sub, info, err)
			}
			if info, err := os.Stat(filepath.Join(dir, "made/here")); sub == "made/here" && (err != nil || info.Mode().Perm() != 0o777) {
				t.Errorf("made: %v, %v", info, err)
			}
		}
		if len(u.asked) != 1 {
			t.Errorf("%s: unmounted %q", sub, u.asked)
		}
	}
	u.stuck[filepath.Join(m.PodDir("u"), "volume-subpaths/v/plain/0")] = errors.New("stuck")
	c := &corev1.Container{Name: "plain", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/m", SubPath: "plain"}}}
	if _, err := m.Mounts(t.Context(), pod, c, nil, nil); err == nil || !strings.Contains(err.Error(), "unmount old subPath") {
		t.Errorf("what cannot be unmounted: %v", err)
	}
}

func TestSubPathStaysInside(t *testing.T) {
	m, _, mounted, _ := newManager(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	if err := m.SetUp(t.Context(), pod, nil); err != nil {
		t.Fatal(err)
	}
	volume := filepath.Join(m.PodDir("u"), "volumes/kubernetes.io~empty-dir/v")
	if err := os.Symlink("/etc", filepath.Join(volume, "out")); err != nil {
		t.Fatal(err)
	}
	mount := func(sub string) error {
		c := &corev1.Container{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/m", SubPath: sub}}}
		_, err := m.Mounts(t.Context(), pod, c, nil, nil)
		return err
	}
	for _, sub := range []string{"out", "out/passwd", "../x", "/etc"} {
		if err := mount(sub); err == nil {
			t.Errorf("subPath %q leads out", sub)
		}
	}
	if err := mount("new/dir"); err != nil {
		t.Error(err)
	}
	if got := mounted[filepath.Join(m.PodDir("u"), "volume-subpaths/v/c/0")]; got != filepath.Join(volume, "new/dir") {
		t.Errorf("bound %q", got)
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
