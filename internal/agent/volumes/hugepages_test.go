// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
		"the only size":      {medium: "HugePages", own: small, mounted: "huge 2097152"},
		"of an init one":     {medium: "HugePages", init: large, mounted: "huge 1073741824"},
		"of the pod":         {medium: "HugePages", pod: &small, mounted: "huge 2097152"},
		"named":              {medium: "HugePages-2Mi", own: small, init: large, mounted: "huge 2097152"},
		"two sizes":          {medium: "HugePages", own: small, init: large, err: "medium: HugePages can't be used if container requests multiple huge page sizes"},
		"none":               {medium: "HugePages", own: asks("cpu"), err: "medium HugePages: hugePages storage requested, but there is no resource request for huge pages"},
		"of a strange size":  {medium: "HugePages", own: asks("hugepages-no"), err: "read page size of hugepages-no: " + resource.ErrFormatWrong.Error()},
		"a strange medium":   {medium: "HugePages-no", own: small, err: "read page size of medium HugePages-no: " + resource.ErrFormatWrong.Error()},
		"named, but another": {medium: "HugePages-1Gi", own: small, err: "medium HugePages-1Gi: hugePages storage requested, but there is no resource request for huge pages"},
	} {
		t.Run(name, func(t *testing.T) {
			kernel := mounts{}
			m := &Manager{Root: t.TempDir(), Mounter: kernel}
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
			if got := kernel[m.volumeDir("u", "empty-dir", "v")]; got != want.mounted {
				t.Errorf("mounted %q, not %q", got, want.mounted)
			}
		})
	}
}

// The kernel's own calls mount a file system of huge pages and take it away.
func TestSystemHuge(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: mounting needs root")
	}
	dir := t.TempDir()
	if err := (System{}).Huge(dir, 2<<20); err != nil {
		t.Fatal(err)
	}
	mounted, err := System{}.IsMountPoint(dir)
	if err != nil || !mounted {
		t.Errorf("mounted: %v, %v", mounted, err)
	}
	if err := (System{}).Unmount(dir); err != nil {
		t.Error(err)
	}
}
