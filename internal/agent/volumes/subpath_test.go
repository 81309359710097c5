// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// part is a container with a part of a volume.
func part(sub string) *corev1.Container {
	return &corev1.Container{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/m", SubPath: sub}}}
}

// hosting is a pod with a directory of the host.
func hosting(dir string) *corev1.Pod {
	return holding(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}})
}

// A container whose part of a volume cannot be had is not made.
func TestSubPathsThatCannotBe(t *testing.T) {
	points := func(m *Manager) string { return filepath.Join(m.PodDir("u"), "volume-subpaths") }
	noVolume := func(_ *Manager, dir string) error { return os.RemoveAll(dir) }
	noPoints := func(m *Manager, _ string) error { return os.WriteFile(points(m), nil, 0o600) }
	aDirectory := func(m *Manager, _ string) error { return os.MkdirAll(points(m)+"/v/c/0", 0o755) }
	for name, c := range map[string]struct {
		sub    string
		spoil  func(m *Manager, dir string) error
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
	empty := holding(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
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
	onThread(t, func() error {
		if err := errors.Join(System{}.Tmpfs(dir, 0), os.Mkdir(dir+"/old", 0o755)); err != nil {
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
	if n := leftOpen(t, func() {
		file := corev1.HostPathVolumeSource{Path: filepath.Join(dir, "file"), Type: &kind}
		if err := errors.Join(os.RemoveAll(file.Path), checkHostPath(&file)); err != nil {
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
