// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package emptydir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/disktest"
	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

func newManager(t *testing.T) (*volumes.Manager, *volumetest.Sources, volumetest.Kernel, *clocktesting.FakeClock) {
	return volumetest.New(t, New)
}

func TestEmptyDirs(t *testing.T) {
	gid := int64(os.Getgid())
	for name, c := range map[string]struct {
		source  corev1.EmptyDirVolumeSource
		group   *int64
		mounted string
		mode    fs.FileMode
	}{
		"usual":      {corev1.EmptyDirVolumeSource{}, nil, "", 0o777},
		"of a group": {corev1.EmptyDirVolumeSource{}, &gid, "", 0o777 | fs.ModeSetgid},
		"memory":     {corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}, nil, "tmpfs 0", 0o777},
		"bounded": {corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: new(resource.MustParse("1Mi"))}, nil,
			"tmpfs 1048576", 0o777},
	} {
		m, _, mounted, _ := newManager(t)
		m.Mounter = sized{mounted}
		pod := volumetest.Pod(corev1.VolumeSource{EmptyDir: &c.source})
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: c.group}
		if err := m.SetUp(t.Context(), pod, nil); err != nil {
			t.Fatal(err)
		}
		dir, err := m.Path(t.Context(), pod, &pod.Spec.Volumes[0])
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode() != c.mode|fs.ModeDir || mounted[dir] != c.mounted {
			t.Errorf("%s: %v, %v, mounted %q", name, info, err, mounted[dir])
		}
		// What the pod's containers changed stays.
		if err := errors.Join(os.Chmod(dir, 0o700), m.SetUp(t.Context(), pod, nil)); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s, again: %v, %v", name, info, err)
		}
	}
}

// sized writes down the size of memory.
type sized struct{ volumetest.Kernel }

func (s sized) Tmpfs(dir string, size int64) error {
	s.Kernel[dir] = fmt.Sprintf("tmpfs %d", size)
	return nil
}

// A group that the node may not give files to is an error, not a volume without the group.
func TestEmptyDirThatCannotBeGivenAway(t *testing.T) {
	m, _, _, _ := newManager(t)
	pod := volumetest.Pod(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(1234))}
	disktest.OnThread(t, func() error {
		if err := disktest.Drop(unix.CAP_CHOWN); err != nil {
			return err
		}
		if err := m.SetUp(t.Context(), pod, nil); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "give emptyDir to group") {
			return fmt.Errorf("error %w", err)
		}
		return nil
	})
}

func TestGroupOfAnEmptyDir(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: giving files away needs root")
	}
	m, _, _, _ := newManager(t)
	pod := volumetest.Pod(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(1234))}
	if err := m.SetUp(t.Context(), pod, nil); err != nil {
		t.Fatal(err)
	}
	var stat unix.Stat_t
	if err := unix.Stat(m.VolumeDir("u", "kubernetes.io/empty-dir", "v"), &stat); err != nil || stat.Uid != 0 || stat.Gid != 1234 {
		t.Errorf("owned by %d:%d, %v", stat.Uid, stat.Gid, err)
	}
}

// A volume of huge pages has the size that its medium names, or the only one that the pod asks for.
func TestHugePagesVolume(t *testing.T) {
	asks := func(names ...string) corev1.ResourceRequirements {
		out := corev1.ResourceRequirements{Requests: corev1.ResourceList{}}
		for _, name := range names {
			out.Requests[corev1.ResourceName(name)] = resource.MustParse("4Mi")
		}
		return out
	}
	small, large := asks("hugepages-2Mi", "cpu"), asks("hugepages-1Gi")
	for name, want := range map[string]struct {
		medium    corev1.StorageMedium
		pod       *corev1.ResourceRequirements
		init, own corev1.ResourceRequirements
		mounted   string
		err       string
	}{
		"the only size":  {medium: "HugePages", own: small, mounted: "huge 2097152"},
		"of an init one": {medium: "HugePages", init: large, mounted: "huge 1073741824"},
		"of the pod":     {medium: "HugePages", pod: &small, mounted: "huge 2097152"},
		"named":          {medium: "HugePages-2Mi", own: small, init: large, mounted: "huge 2097152"},
		"two sizes": {medium: "HugePages", own: small, init: large,
			err: "medium: HugePages can't be used if container requests multiple huge page sizes"},
		"none": {medium: "HugePages", own: asks("cpu"),
			err: "medium HugePages: hugePages storage requested, but there is no resource request for huge pages"},
		"of a strange size": {medium: "HugePages", own: asks("hugepages-no"),
			err: "read page size of hugepages-no: " + resource.ErrFormatWrong.Error()},
		"a strange medium": {medium: "HugePages-no", own: small,
			err: "read page size of medium HugePages-no: " + resource.ErrFormatWrong.Error()},
		"named, but another": {medium: "HugePages-1Gi", own: small,
			err: "medium HugePages-1Gi: hugePages storage requested, but there is no resource request for huge pages"},
	} {
		t.Run(name, func(t *testing.T) {
			m, _, kernel, _ := newManager(t)
			v := corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: want.medium}}}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Spec: corev1.PodSpec{
				Resources: want.pod, Volumes: []corev1.Volume{v},
				InitContainers: []corev1.Container{{Name: "i", Resources: want.init}}, Containers: []corev1.Container{{Name: "c", Resources: want.own}},
			}}
			err := m.SetUp(t.Context(), pod, nil)
			if want.err != "" {
				if wrapped := "MountVolume.SetUp failed for volume \"v\" : " + want.err; err == nil || err.Error() != wrapped {
					t.Errorf("error %v, not %s", err, wrapped)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := kernel[m.VolumeDir("u", "kubernetes.io/empty-dir", "v")]; got != want.mounted {
				t.Errorf("mounted %q, not %q", got, want.mounted)
			}
		})
	}
}
