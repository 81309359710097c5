// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package local

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

func TestConformance(t *testing.T) {
	claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: t.TempDir()}},
	}}
	volumetest.Run(t, New, map[string]volumetest.Case{
		"claimed": {
			Source: claim, PersistentVolume: pv, Measure: volumes.MeasureFileSystem, Foreign: true,
		},
		"claimed to read": {
			Source:           corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c", ReadOnly: true}},
			PersistentVolume: pv, ReadOnly: true, Measure: volumes.MeasureFileSystem, Foreign: true,
		},
		"no directory": {
			Source: claim, Fails: "look at local volume",
			PersistentVolume: &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{
				PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/no/such"}},
			}},
		},
	})
}

// A block device is bound, kept open and linked where kubelet does so, and passed to containers; all of that goes with the pod, also in a
// process that knows nothing of it.
func TestBlock(t *testing.T) {
	m, sources, kernel, _ := volumetest.New(t, New)
	device := blockDevice(t)
	sources.PV = &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
		VolumeMode:             new(corev1.PersistentVolumeBlock),
		PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: device}},
	}}
	pod := volumetest.Pod(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}})
	pod.Spec.Containers[0].VolumeMounts = nil
	pod.Spec.Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "v", DevicePath: "/dev/xvda"}}
	holder := &holding{Kernel: kernel}
	m.Mounter = holder
	for range 2 {
		if err := m.SetUp(t.Context(), pod, nil); err != nil {
			t.Fatal(err)
		}
	}
	global := filepath.Join(m.Root, "plugins/kubernetes.io~local-volume/volumeDevices/pv/u")
	link := filepath.Join(m.Root, "pods/u/volumeDevices/kubernetes.io~local-volume/pv")
	if to, err := os.Readlink(link); err != nil || to != device || kernel[global] != device || holder.held != global {
		t.Errorf("link to %s, %v; mounted %v, held %s", to, err, kernel, holder.held)
	}
	devices, err := m.Devices(t.Context(), pod, &pod.Spec.Containers[0])
	if err != nil || len(devices) != 1 || devices[0].HostPath != link || devices[0].ContainerPath != "/dev/xvda" {
		t.Errorf("devices %v, %v", devices, err)
	}
	if err := volumes.NewManager(m.Host, []volumes.Factory{New}).TearDown(t.Context(), "u"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Dir(global)); !os.IsNotExist(err) || len(kernel) > 0 || holder.held != "" {
		t.Errorf("left %v, mounted %v, held %q", err, kernel, holder.held)
	}

	// What the volume says and what is there must agree.
	sources.PV.Spec.VolumeMode = nil
	if err := m.SetUp(t.Context(), mounting(pod), nil); err == nil || !strings.Contains(err.Error(), "is a block device") {
		t.Errorf("a file system on a device: %v", err)
	}
	sources.PV.Spec.VolumeMode, sources.PV.Spec.Local.Path = new(corev1.PersistentVolumeBlock), t.TempDir()
	if err := m.SetUp(t.Context(), pod, nil); err == nil || !strings.Contains(err.Error(), "MapVolume.MapBlockVolume failed") {
		t.Errorf("a device in a directory: %v", err)
	}
}

// mounting returns the pod with a mount of its volume.
func mounting(pod *corev1.Pod) *corev1.Pod {
	out := pod.DeepCopy()
	out.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	return out
}

// holding is a kernel that keeps one device open.
type holding struct {
	volumetest.Kernel
	held string
}

func (h *holding) HoldDevice(path string) error { h.held = path; return nil }

func (h *holding) ReleaseDevice(path string) error {
	if h.held == path {
		h.held = ""
	}
	return nil
}

// blockDevice returns a block device of the machine. Nothing opens it.
func blockDevice(t *testing.T) string {
	t.Helper()
	all, err := os.ReadDir("/dev")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if e.Type()&fs.ModeDevice != 0 && e.Type()&fs.ModeCharDevice == 0 {
			return filepath.Join("/dev", e.Name())
		}
	}
	t.Skip("SKIPPED: the machine has no block device")
	return ""
}
