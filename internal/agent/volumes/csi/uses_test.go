// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

// A pod that is deleted while it waits for an attachment leaves the volume out of use, unless another pod waits for it: while the node says
// that it uses a volume, no other node gets it.
func TestDeletedWhileItWaits(t *testing.T) {
	d := newDriver()
	d.class.Spec.AttachRequired, d.attached = nil, false
	m, sources, _, _ := volumetest.New(t, d.factory)
	sources.PV = persistentVolume(corev1.ReadWriteOnce)
	for _, uid := range []types.UID{"u1", "u2"} {
		if err := m.SetUp(t.Context(), podOf(uid), nil); err == nil || !d.used["d.example.com^h1"] {
			t.Errorf("%s: %v, in use %v", uid, err, d.used)
		}
	}
	if err := m.TearDown(t.Context(), "u1"); err != nil || !d.used["d.example.com^h1"] {
		t.Errorf("one pod waits still: %v, in use %v", err, d.used)
	}
	if err := m.TearDown(t.Context(), "u2"); err != nil || len(d.used) > 0 {
		t.Errorf("no pod waits: %v, in use %v", err, d.used)
	}
	if len(d.calls) > 0 {
		t.Errorf("calls %q", d.calls)
	}
}

// The end of a pod does not take a volume out of use for which another pod waits. The device is unstaged all the same.
func TestNextPodWaits(t *testing.T) {
	d := newDriver()
	d.class.Spec.AttachRequired = nil
	m, sources, _, _ := volumetest.New(t, d.factory)
	sources.PV = persistentVolume(corev1.ReadWriteOnce)
	if err := m.SetUp(t.Context(), podOf("u1"), nil); err != nil {
		t.Fatal(err)
	}
	d.attached = false
	if err := m.SetUp(t.Context(), podOf("u2"), nil); err == nil {
		t.Error("the second pod does not wait")
	}
	if err := m.TearDown(t.Context(), "u1"); err != nil || !d.used["d.example.com^h1"] {
		t.Errorf("%v, in use %v", err, d.used)
	}
	d.attached = true
	if err := m.SetUp(t.Context(), podOf("u2"), nil); err != nil {
		t.Fatal(err)
	}
	if err := m.TearDown(t.Context(), "u2"); err != nil || len(d.used) > 0 {
		t.Errorf("%v, in use %v", err, d.used)
	}
	if want := []string{"stage", "publish", "unpublish", "unstage", "stage", "publish", "unpublish", "unstage"}; !slices.Equal(d.calls, want) {
		t.Errorf("calls %q, want %q", d.calls, want)
	}
	empty(t, m.Root)
}

// The same for block devices, which have no file of the pod.
func TestBlockDeletedWhileItWaits(t *testing.T) {
	d := newDriver()
	d.class.Spec.AttachRequired, d.attached = nil, false
	m, sources, _, _ := volumetest.New(t, d.factory)
	sources.PV = blockPV()
	if err := m.SetUp(t.Context(), podOf("u"), nil); err == nil || !d.used["d.example.com^h1"] {
		t.Errorf("%v, in use %v", err, d.used)
	}
	if err := m.TearDown(t.Context(), "u"); err != nil || len(d.used) > 0 {
		t.Errorf("%v, in use %v", err, d.used)
	}
}
