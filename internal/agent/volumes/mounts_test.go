// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The volumes that the node writes are read-only for containers whatever the mount says; others are what their mount or claim says.
func TestReadOnlyMounts(t *testing.T) {
	named := corev1.LocalObjectReference{Name: "cm"}
	claim := func(readOnly bool) corev1.VolumeSource {
		return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c", ReadOnly: readOnly}}
	}
	for name, c := range map[string]struct {
		source corev1.VolumeSource
		always bool
	}{
		"configMap":     {corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: named}}, true},
		"secret":        {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}, true},
		"projected":     {corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}, true},
		"downwardAPI":   {corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{}}, true},
		"claim":         {claim(false), false},
		"claim to read": {claim(true), true},
		"nfs":           {corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "h", Path: "/"}}, false},
		"nfs to read":   {corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "h", Path: "/", ReadOnly: true}}, true},
		"emptyDir":      {corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, false},
		"hostPath":      {corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/tmp"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			m, _, _, _ := newManager(t)
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
			pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: c.source}}
			if err := m.SetUp(t.Context(), pod, nil); err != nil {
				t.Fatal(err)
			}
			container := &corev1.Container{Name: "c", VolumeMounts: []corev1.VolumeMount{
				{Name: "v", MountPath: "/a"}, {Name: "v", MountPath: "/b", ReadOnly: true},
			}}
			mounts, err := m.Mounts(t.Context(), pod, container, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if mounts[0].Readonly != c.always {
				t.Errorf("without readOnly: read-only %v, want %v", mounts[0].Readonly, c.always)
			}
			if !mounts[1].Readonly {
				t.Error("readOnly of the mount is ignored")
			}
		})
	}
}
