// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumebinder

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A directory is removed only below the scratch directory, whatever its path and the symbolic links on it say.
func TestRemoveBelow(t *testing.T) {
	top := t.TempDir()
	base, outside := filepath.Join(top, "base"), filepath.Join(top, "outside")
	for _, dir := range []string{filepath.Join(base, "a", "b"), filepath.Join(outside, "kept")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(base, "link")); err != nil {
		t.Fatal(err)
	}
	for path, ok := range map[string]bool{
		base + "/a": true, base + "/none": true, base: false, base + "/": false, base + "/../outside": false, base + "/link/kept": false,
		outside: false, base + "other/x": false,
	} {
		if err := removeBelow(base, path); (err == nil) != ok {
			t.Errorf("remove %s: %v, want success %v", path, err, ok)
		}
	}
	if _, err := os.Stat(filepath.Join(outside, "kept")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(base, "a")); !os.IsNotExist(err) {
		t.Errorf("the directory is still there: %v", err)
	}
}

func TestDeletionFinalizers(t *testing.T) {
	const inTree, external = "kubernetes.io/pv-controller", "external-provisioner.volume.kubernetes.io/finalizer"
	for _, c := range []struct {
		provisioner string
		policy      corev1.PersistentVolumeReclaimPolicy
		has, want   []string
	}{
		{"d.example.com", corev1.PersistentVolumeReclaimDelete, []string{external}, []string{external}},
		{"kubernetes.io/aws-ebs", corev1.PersistentVolumeReclaimDelete, []string{inTree, external}, []string{external}},
		{"kubernetes.io/host-path", corev1.PersistentVolumeReclaimDelete, []string{"x", external}, []string{"x", inTree}},
		{"kubernetes.io/host-path", corev1.PersistentVolumeReclaimRetain, []string{"x", inTree}, []string{"x"}},
	} {
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Finalizers: c.has},
			Spec: corev1.PersistentVolumeSpec{PersistentVolumeReclaimPolicy: c.policy}}
		if got := deletionFinalizers(pv, c.provisioner); !slices.Equal(got, c.want) {
			t.Errorf("%s, %s, %q: got %q, want %q", c.provisioner, c.policy, c.has, got, c.want)
		}
	}
}
