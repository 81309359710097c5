// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package secret

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/volumes/disktest"
	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

// Without items, a volume holds all keys; with items, those that there are. It lies in memory.
func TestKeys(t *testing.T) {
	for name, c := range map[string]struct {
		source corev1.SecretVolumeSource
		want   map[string]string
	}{
		"all": {corev1.SecretVolumeSource{SecretName: "s"}, map[string]string{"s": "secret"}},
		"an item": {
			corev1.SecretVolumeSource{SecretName: "s", Items: []corev1.KeyToPath{{Key: "s", Path: "a/b"}}}, map[string]string{"a/b": "secret"},
		},
		"no such": {corev1.SecretVolumeSource{SecretName: "no", Optional: new(true)}, map[string]string{}},
		"a missing one": {
			corev1.SecretVolumeSource{SecretName: "s", Optional: new(true), Items: []corev1.KeyToPath{{Key: "no", Path: "a"}}}, map[string]string{},
		},
	} {
		m, _, mounted, _ := volumetest.New(t, New)
		pod := volumetest.Pod(corev1.VolumeSource{Secret: &c.source})
		if err := m.SetUp(t.Context(), pod, nil); err != nil {
			t.Fatal(err)
		}
		dir, err := m.Path(t.Context(), pod, &pod.Spec.Volumes[0])
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, disktest.Read(t, dir)); diff != "" || mounted[dir] != "tmpfs" {
			t.Errorf("%s: mounted %v (-want +got)\n%s", name, mounted, diff)
		}
	}
}
