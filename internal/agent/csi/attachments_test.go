// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A volume that the node has let go and uses again is in use once a status has been written since: the newest Node may be older than that,
// and the controller may hear in between that the node does not use the volume.
func TestUsedAgain(t *testing.T) {
	m, client, w := newManager(t)
	a, name := m.Attachments(), UniqueName("d", "h")
	if _, err := client.StorageV1().VolumeAttachments().Create(t.Context(), &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: AttachmentName("d", "h", "n1")}, Status: storagev1.VolumeAttachmentStatus{Attached: true},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	node := func(inUse ...corev1.UniqueVolumeName) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
			VolumesAttached: []corev1.AttachedVolume{{Name: name}}, VolumesInUse: inUse,
		}}
	}
	check := func(when string, want bool) {
		t.Helper()
		if _, ok, err := a.Attached(t.Context(), "d", "h", "pod"); err != nil || ok != want {
			t.Errorf("%s: attached %v, %v, want %v", when, ok, err, want)
		}
	}
	a.Use("d", "h")
	a.Saw(node(name))
	check("in use", true)

	a.Release("d", "h")
	check("used again before a write", false)
	if a.InUse(); len(w.pods) != 1 {
		t.Errorf("woken: %v", w.pods)
	}
	check("no write has left it out", true)

	a.Release("d", "h")
	a.InUse() // is being written
	check("used again during the write", false)
	a.Saw(node())
	check("the write has left it out", false)
	a.InUse()
	a.Saw(node(name))
	check("written again", true)
}
