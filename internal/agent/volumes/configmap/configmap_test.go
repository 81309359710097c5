// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package configmap

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/disktest"
	"github.com/mortise-dev/mortise/internal/agent/volumes/secret"
	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

func newManager(t *testing.T) (*volumes.Manager, *volumetest.Sources, volumetest.Kernel, *clocktesting.FakeClock) {
	return volumetest.New(t, New, secret.New)
}

func configMap(name string, optional bool, items ...corev1.KeyToPath) corev1.VolumeSource {
	return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name},
		Items: items, Optional: &optional}}
}

// Files have the mode of their item, or of their volume, or the usual one; the pod's group can read them.
func TestModes(t *testing.T) {
	gid := int64(os.Getgid())
	for name, c := range map[string]struct {
		item, volume *int32
		group        *int64
		want         fs.FileMode
	}{
		"usual":             {want: 0o644},
		"the volume's":      {volume: new(int32(0o600)), want: 0o600},
		"the item's":        {item: new(int32(0o400)), volume: new(int32(0o600)), want: 0o400},
		"the group's too":   {item: new(int32(0o600)), group: &gid, want: 0o640},
		"no more than that": {item: new(int32(0o7777)), want: 0o777},
	} {
		m, _, _, _ := newManager(t)
		source := configMap("cm", false, corev1.KeyToPath{Key: "k", Path: "k", Mode: c.item})
		source.ConfigMap.DefaultMode = c.volume
		pod := volumetest.Pod(source)
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: c.group}
		for range 2 {
			if err := m.SetUp(t.Context(), pod, nil); err != nil {
				t.Fatal(err)
			}
			path, err := m.Path(t.Context(), pod, &pod.Spec.Volumes[0])
			if err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(filepath.Join(path, "k")); err != nil || info.Mode() != c.want {
				t.Errorf("%s: %v, %v", name, info, err)
			}
		}
	}
}

// Without items, a volume holds all of the keys; with items, those that there are.
func TestKeysOfMaps(t *testing.T) {
	missing := []corev1.KeyToPath{{Key: "no", Path: "a"}, {Key: "k", Path: "c"}}
	for name, c := range map[string]struct {
		source corev1.VolumeSource
		want   map[string]string
	}{
		"a configMap":   {configMap("cm", false), map[string]string{"k": "text", "b": "\x01"}},
		"an item":       {configMap("cm", false, corev1.KeyToPath{Key: "b", Path: "x/../y"}), map[string]string{"y": "\x01"}},
		"missing ones":  {configMap("cm", true, missing...), map[string]string{"c": "text"}},
		"a missing one": {configMap("no", true), map[string]string{}},
		"a secret":      {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}, map[string]string{"s": "secret"}},
		"no secret":     {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "no", Optional: new(true)}}, map[string]string{}},
	} {
		m, _, _, _ := newManager(t)
		pod := volumetest.Pod(c.source)
		if err := m.SetUp(t.Context(), pod, nil); err != nil {
			t.Fatal(err)
		}
		dir, err := m.Path(t.Context(), pod, &pod.Spec.Volumes[0])
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, disktest.Read(t, dir)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}
