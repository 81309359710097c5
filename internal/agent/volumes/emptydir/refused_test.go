// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package emptydir

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

// mounted is a pod with an emptyDir of a medium that is mounted.
func mounted(medium corev1.StorageMedium) *corev1.Pod {
	pod := volumetest.Pod(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium}})
	pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"hugepages-2Mi": resource.MustParse("2Mi")},
	}}}
	return pod
}

// After the machine has restarted, nothing is mounted, and what is mounted anew is for all of the pod's users. What containers change
// afterwards stays.
func TestMountedAnew(t *testing.T) {
	for _, medium := range []corev1.StorageMedium{corev1.StorageMediumMemory, "HugePages"} {
		m, _, kernel, _ := newManager(t)
		pod := mounted(medium)
		dir := m.VolumeDir("u", Name, "v")
		for _, step := range []struct{ made, want os.FileMode }{{0o755, 0o777}, {0o700, 0o700}} {
			if err := m.SetUp(t.Context(), pod, nil); err != nil {
				t.Fatal(err)
			}
			if step.want == 0o777 {
				delete(kernel, dir)
			}
			if err := errors.Join(os.Chmod(dir, step.made), m.SetUp(t.Context(), pod, nil)); err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != step.want || kernel[dir] == "" {
				t.Errorf("%s: %v, %v, mounted %v", medium, info.Mode(), err, kernel)
			}
		}
	}
}

// refusing is a kernel that refuses to do one thing.
type refusing struct {
	volumetest.Kernel
	what string
}

var errRefused = errors.New("refused")

func (r refusing) refuse(what string) error {
	if r.what == what {
		return errRefused
	}
	return nil
}

func (r refusing) Tmpfs(string, int64) error { return r.refuse("tmpfs") }

func (r refusing) Huge(string, int64) error { return r.refuse("huge") }

func (r refusing) IsMountPoint(string) (bool, error) { return false, r.refuse("look") }

// A pod does not start with a directory that cannot be made or mounted.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		medium     corev1.StorageMedium
		what, want string
	}{
		{corev1.StorageMediumMemory, "tmpfs", "mount memory at"}, {corev1.StorageMediumMemory, "look", "refused"},
		{"HugePages", "huge", "mount huge pages at"}, {"HugePages", "look", "refused"},
	} {
		m, _, kernel, _ := newManager(t)
		m.Mounter = refusing{kernel, c.what}
		if err := m.SetUp(t.Context(), mounted(c.medium), nil); !errors.Is(err, errRefused) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %s: %v, want %s", c.medium, c.what, err, c.want)
		}
	}
	for _, at := range []string{"volumes/kubernetes.io~empty-dir", "plugins/kubernetes.io~empty-dir"} {
		m, _, _, _ := newManager(t)
		file := filepath.Join(m.PodDir("u"), at)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		if err := m.SetUp(t.Context(), mounted(""), nil); !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("%s is a file: %v", at, err)
		}
	}
}
