// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/podfit"
	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

func TestConformance(t *testing.T) {
	volumetest.Run(t, newDriver().factory, map[string]volumetest.Case{
		"claimed": {Source: claimed, PersistentVolume: persistentVolume(corev1.ReadWriteOnce), Measure: volumes.MeasureDriver, Foreign: true},
		"inline": {
			Source:  corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d.example.com"}},
			Measure: volumes.MeasureDriver, Foreign: true,
		},
	})
}

// A driver that does not stage is only told to publish.
func TestWithoutStage(t *testing.T) {
	d := newDriver()
	d.able = nil
	m, _, kernel := machine(t, d, persistentVolume())
	pod := podOf("u")
	pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	if err := m.SetUp(t.Context(), pod, nil); err != nil {
		t.Fatal(err)
	}
	if d.last.StagingTargetPath != "" || !d.last.Readonly {
		t.Errorf("request %v", d.last)
	}
	if err := m.TearDown(t.Context(), "u"); err != nil {
		t.Fatal(err)
	}
	if want := []string{"publish", "unpublish"}; !slices.Equal(d.calls, want) || len(kernel) > 0 {
		t.Errorf("calls %q, want %q; mounted: %v", d.calls, want, kernel)
	}
	empty(t, m.Root)
}

// machine is a manager with a driver.
func machine(t *testing.T, d *fakeDriver, pv *corev1.PersistentVolume) (*volumes.Manager, *volumetest.Sources, volumetest.Kernel) {
	m, sources, kernel, _ := volumetest.New(t, d.factory)
	sources.PV = pv
	return m, sources, kernel
}

func podOf(uid types.UID) *corev1.Pod {
	pod := volumetest.Pod(*claimed.DeepCopy())
	pod.UID, pod.Name = uid, string(uid)
	return pod
}

// Two pods share a device: it is staged once, and unstaged when the last of them has ended.
func TestSharedDevice(t *testing.T) {
	d := newDriver()
	m, _, kernel := machine(t, d, persistentVolume(corev1.ReadWriteOnce))
	for _, uid := range []types.UID{"u1", "u2"} {
		if err := m.SetUp(t.Context(), podOf(uid), nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, uid := range []types.UID{"u1", "u2"} {
		if err := m.TearDown(t.Context(), uid); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"stage", "publish", "publish", "unpublish", "unpublish", "unstage"}; !slices.Equal(d.calls, want) {
		t.Errorf("calls %q, want %q", d.calls, want)
	}
	if len(kernel) > 0 {
		t.Errorf("mounted: %v", kernel)
	}
	empty(t, m.Root)
}

// A volume for one pod is not published to a second one.
func TestOnePod(t *testing.T) {
	d := newDriver()
	m, _, _ := machine(t, d, persistentVolume(corev1.ReadWriteOncePod))
	if err := m.SetUp(t.Context(), podOf("u1"), nil); err != nil {
		t.Fatal(err)
	}
	err := m.SetUp(t.Context(), podOf("u2"), nil)
	if want := `MountVolume.SetUp failed for volume "pv" : volume uses the ReadWriteOncePod access mode and is already in use by another pod`; err ==
		nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

// The errors of steps are upstream's, and a driver that says that it failed leaves nothing.
func TestFailures(t *testing.T) {
	for name, c := range map[string]struct {
		call, want string
		err        error
		undone     []string // the calls of tear-down
	}{
		"stage": {
			"stage", `MountVolume.MountDevice failed for volume "pv" : rpc error: code = Internal desc = no luck (CSI driver d.example.com)`, errInternal, nil,
		},
		"stage, maybe": {
			"stage", `MountVolume.MountDevice failed for volume "pv" : rpc error: code = Aborted desc = busy (CSI driver d.example.com)`,
			status.Error(codes.Aborted, "busy"), []string{"unstage"},
		},
		"publish": {
			"publish", `MountVolume.SetUp failed for volume "pv" : rpc error: code = Internal desc = no luck (CSI driver d.example.com)`, errInternal, []string{"unstage"},
		},
		"publish, maybe": {
			"publish", `MountVolume.SetUp failed for volume "pv" : rpc error: code = DeadlineExceeded desc = late (CSI driver d.example.com)`,
			status.Error(codes.DeadlineExceeded, "late"), []string{"unpublish", "unstage"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDriver()
			m, _, _ := machine(t, d, persistentVolume(corev1.ReadWriteOnce))
			d.fail[c.call] = c.err
			if err := m.SetUp(t.Context(), podOf("u"), nil); err == nil || err.Error() != c.want {
				t.Errorf("error %v, want %s", err, c.want)
			}
			d.calls = nil
			if err := m.TearDown(t.Context(), "u"); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(d.calls, c.undone) {
				t.Errorf("undone by %q, want %q", d.calls, c.undone)
			}
			empty(t, m.Root)
		})
	}
}

// A pod whose driver is not there has upstream's event. If the node expects the driver, the pod waits with its name.
func TestMissingDriver(t *testing.T) {
	d := newDriver()
	d.missing = true
	m, _, _ := machine(t, d, persistentVolume(corev1.ReadWriteOnce))
	err := m.SetUp(t.Context(), podOf("u"), nil)
	if want := `MountVolume.MountDevice failed for volume "pv" : kubernetes.io/csi: attacher.MountDevice failed to create ` +
		`newCsiDriverClient: driver name d.example.com not found in the list of registered CSI drivers`; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	m.Expected = []string{"d.example.com"}
	if hold := (*containermanager.Hold)(nil); !errors.As(m.SetUp(t.Context(), podOf("u"), nil), &hold) || hold.Plugin != "d.example.com" {
		t.Errorf("hold %v", hold)
	}
}

// A pod waits for the attachment without an event, until kubelet's time is over.
func TestAttachment(t *testing.T) {
	d := newDriver()
	d.class.Spec.AttachRequired, d.attached = nil, false
	m, sources, _, clock := volumetest.New(t, d.factory)
	sources.PV = persistentVolume(corev1.ReadWriteOnce)
	if hold := (*containermanager.Hold)(nil); !errors.As(m.SetUp(t.Context(), podOf("u"), nil), &hold) || hold.Plugin != "" {
		t.Errorf("hold %v", hold)
	}
	clock.Step(attachWait)
	err := m.SetUp(t.Context(), podOf("u"), nil)
	if want := "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[v], failed to process volumes=[]: " +
		"context deadline exceeded"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	d.attached = true
	if err := m.SetUp(t.Context(), podOf("u"), nil); err != nil {
		t.Fatal(err)
	}
	if d.last.PublishContext["device"] != "sdb" || !d.used["d.example.com^h1"] {
		t.Errorf("publish context %v, in use %v", d.last.PublishContext, d.used)
	}
	if err := m.TearDown(t.Context(), "u"); err != nil || len(d.used) > 0 {
		t.Errorf("%v, in use %v", err, d.used)
	}
}

// A node that can have no more volumes of the driver rejects the pod, if the driver's limit may change.
func TestAttachmentLimit(t *testing.T) {
	d := newDriver()
	d.class.Spec.AttachRequired, d.attached, d.exhausted = nil, false, true
	m, sources, _, clock := volumetest.New(t, d.factory)
	sources.PV = persistentVolume(corev1.ReadWriteOnce)
	for _, period := range []*int64{nil, new(int64(10))} {
		d.class.Spec.NodeAllocatableUpdatePeriodSeconds = period
		if err := m.SetUp(t.Context(), podOf("u"), nil); err == nil {
			t.Error("the volume is attached")
		}
		clock.Step(attachWait)
		err := m.SetUp(t.Context(), podOf("u"), nil)
		reject := (*podfit.Rejection)(nil)
		if is := errors.As(err, &reject); is != (period != nil) || is && reject.Reason != "VolumeAttachmentLimitExceeded" {
			t.Errorf("period %v: %v", period, err)
		}
		if used := len(d.used) > 0; used != (period == nil) {
			t.Errorf("period %v: in use %v", period, d.used)
		}
	}
}

// A volume that was to be attached, until its CSIDriver said that there is no attachment, is not in use in the Node's status.
func TestAttachmentNotRequiredAfterAll(t *testing.T) {
	d := newDriver()
	d.class.Spec.AttachRequired, d.attached = nil, false
	m, sources, _, _ := volumetest.New(t, d.factory)
	sources.PV = persistentVolume(corev1.ReadWriteOnce)
	if hold := (*containermanager.Hold)(nil); !errors.As(m.SetUp(t.Context(), podOf("u"), nil), &hold) || len(d.used) != 1 {
		t.Errorf("hold %v, in use %v", hold, d.used)
	}
	d.class.Spec.AttachRequired = new(false)
	if err := m.SetUp(t.Context(), podOf("u"), nil); err != nil || len(d.used) > 0 {
		t.Errorf("%v, in use %v", err, d.used)
	}
}

// With podInfoOnMount and tokenRequests, NodePublishVolume has the pod's names and tokens. The node publishes the
// volume again with new tokens.
func TestRepublish(t *testing.T) {
	d := newDriver()
	d.class.Spec.RequiresRepublish, d.class.Spec.PodInfoOnMount = new(true), new(true)
	d.class.Spec.TokenRequests = []storagev1.TokenRequest{{Audience: "a"}}
	m, sources, _, clock := volumetest.New(t, d.factory)
	sources.PV = persistentVolume(corev1.ReadWriteOnce)
	set := func() {
		t.Helper()
		if err := m.SetUp(t.Context(), podOf("u"), nil); err != nil {
			t.Fatal(err)
		}
	}
	set()
	set()
	context := d.last.VolumeContext
	if context["csi.storage.k8s.io/pod.uid"] != "u" || context["csi.storage.k8s.io/ephemeral"] != "false" || context["a"] != "b" ||
		!strings.Contains(context["csi.storage.k8s.io/serviceAccount.tokens"], `{"a":{"token":"token--1"`) {
		t.Errorf("volume context %v", context)
	}
	if next := m.NextRenewal("u"); !next.Equal(volumetest.Epoch.Add(time.Minute)) {
		t.Errorf("next at %v", next)
	}
	clock.Step(time.Minute)
	d.class.Spec.ServiceAccountTokenInSecrets = new(true)
	set()
	if !strings.Contains(d.last.Secrets["csi.storage.k8s.io/serviceAccount.tokens"], "token--2") ||
		d.last.VolumeContext["csi.storage.k8s.io/serviceAccount.tokens"] != "" {
		t.Errorf("secrets %v, context %v", d.last.Secrets, d.last.VolumeContext)
	}
	// A failure leaves what the pod has.
	clock.Step(time.Minute)
	d.fail["publish"] = errInternal
	if err := m.SetUp(t.Context(), podOf("u"), nil); err == nil {
		t.Error("no error")
	}
	if _, err := os.Stat(filepath.Join(m.VolumeDir("u", Name, "pv"), "mount")); err != nil {
		t.Error(err)
	}
	if want := []string{"stage", "publish", "publish", "publish"}; !slices.Equal(d.calls, want) {
		t.Errorf("calls %q, want %q", d.calls, want)
	}
}

// A device that a killed node has left staged without a pod is unstaged when its driver registers.
func TestLeftStaged(t *testing.T) {
	d := newDriver()
	m, _, kernel := machine(t, d, persistentVolume(corev1.ReadWriteOnce))
	if err := m.SetUp(t.Context(), podOf("u"), nil); err != nil {
		t.Fatal(err)
	}
	dir := m.VolumeDir("u", Name, "pv")
	delete(kernel, filepath.Join(dir, "mount"))
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	again := volumes.NewManager(m.Host, []volumes.Factory{d.factory})
	if err := again.Restore(); err != nil || !d.used["d.example.com^h1"] {
		t.Errorf("%v, in use %v", err, d.used)
	}
	again.DriverRegistered(t.Context(), "other.example.com")
	if len(kernel) != 1 {
		t.Errorf("mounted: %v", kernel)
	}
	again.DriverRegistered(t.Context(), "d.example.com")
	if len(kernel) != 0 || len(d.used) > 0 {
		t.Errorf("mounted: %v, in use %v", kernel, d.used)
	}
	empty(t, m.Root)
}

// A driver that says that it has unmounted, and has not, removes nothing.
func TestLyingDriver(t *testing.T) {
	d := newDriver()
	m, _, kernel := machine(t, d, persistentVolume(corev1.ReadWriteOnce))
	if err := m.SetUp(t.Context(), podOf("u"), nil); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(m.VolumeDir("u", Name, "pv"), "mount")
	d.mounter = volumetest.Kernel{}
	if err := os.WriteFile(filepath.Join(m.Root, "witness"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.TearDown(t.Context(), "u"); err == nil || !strings.Contains(err.Error(), "still mounted") {
		t.Errorf("error %v", err)
	}
	if _, ok := kernel[target]; !ok {
		t.Error("unmounted")
	}
	d.mounter = kernel
	if err := m.TearDown(t.Context(), "u"); err != nil {
		t.Error(err)
	}
	empty(t, m.Root)
}

// A block device is staged, published, bound and linked where kubelet does so, and passed to containers.
func TestBlock(t *testing.T) {
	d := newDriver()
	m, _, kernel := machine(t, d, blockPV())
	pod := podOf("u")
	if err := m.SetUp(t.Context(), pod, nil); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(m.Root, "pods/u/volumeDevices/kubernetes.io~csi/pv")
	published := filepath.Join(m.Root, "plugins/kubernetes.io/csi/volumeDevices/publish/pv/u")
	if to, err := os.Readlink(link); err != nil || to != published {
		t.Errorf("link to %s: %v", to, err)
	}
	if _, ok := kernel[filepath.Join(m.Root, "plugins/kubernetes.io/csi/volumeDevices/pv/dev/u")]; !ok {
		t.Errorf("mounted: %v", kernel)
	}
	container := &corev1.Container{Name: "c", VolumeDevices: []corev1.VolumeDevice{{Name: "v", DevicePath: "/dev/xvda"}}}
	devices, err := m.Devices(t.Context(), pod, container)
	if err != nil || len(devices) != 1 || devices[0].HostPath != link || devices[0].ContainerPath != "/dev/xvda" ||
		devices[0].Permissions != "mrw" {
		t.Errorf("devices %v, %v", devices, err)
	}
	if err := volumes.NewManager(m.Host, []volumes.Factory{d.factory}).TearDown(t.Context(), "u"); err != nil {
		t.Fatal(err)
	}
	if want := []string{"stage", "publish", "unpublish", "unstage"}; !slices.Equal(d.calls, want) || len(kernel) > 0 {
		t.Errorf("calls %q, want %q; mounted: %v", d.calls, want, kernel)
	}
	empty(t, m.Root)
}

// The driver measures. Sizes below zero are none.
func TestMeasure(t *testing.T) {
	d := newDriver()
	m, _, _ := machine(t, d, persistentVolume(corev1.ReadWriteOnce))
	d.stats = []*csipb.VolumeUsage{
		{Unit: csipb.VolumeUsage_BYTES, Total: 10, Used: 4, Available: 6}, {Unit: csipb.VolumeUsage_INODES, Total: 3, Used: -1},
	}
	pod := podOf("u")
	got, err := m.Usage(t.Context(), pod, &pod.Spec.Volumes[0])
	if want := (volumes.Usage{Bytes: 10, Free: 6, Used: 4, Files: 3}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
}

func FuzzData(f *testing.F) {
	f.Add([]byte(`{"driverName":"d","volumeHandle":"h"}`))
	f.Add([]byte(`{"driverName":`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if d, err := decodeData(text); err == nil && (d.Driver == "" || d.Handle == "") {
			t.Errorf("%+v", d)
		}
	})
}

// A device that cannot be unstaged does not keep its pod. It is staged again for the next pod, and unstaged when the driver can.
func TestUnstageFails(t *testing.T) {
	for name, err := range map[string]error{"final": errInternal, "transient": status.Error(codes.DeadlineExceeded, "slow")} {
		d := newDriver()
		d.fail = map[string]error{"unstage": err}
		m, _, kernel := machine(t, d, persistentVolume(corev1.ReadWriteOnce))
		if err := m.SetUp(t.Context(), podOf("u1"), nil); err != nil {
			t.Fatal(err)
		}
		if err := m.TearDown(t.Context(), "u1"); err != nil {
			t.Errorf("%s: the pod stays: %v", name, err)
		}
		if !slices.Equal(d.again, []string{"d.example.com"}) {
			t.Errorf("%s: looked at again: %q", name, d.again)
		}
		if err := m.DriverRegistered(t.Context(), "d.example.com"); err == nil {
			t.Errorf("%s: nothing is left to do", name)
		}
		if err := m.SetUp(t.Context(), podOf("u2"), nil); err != nil {
			t.Fatal(err)
		}
		if err := m.DriverRegistered(t.Context(), "d.example.com"); err != nil {
			t.Errorf("%s: a device in use is left: %v", name, err)
		}
		if err := m.TearDown(t.Context(), "u2"); err != nil {
			t.Fatal(err)
		}
		d.fail = nil
		if err := m.DriverRegistered(t.Context(), "d.example.com"); err != nil {
			t.Fatal(err)
		}
		want := []string{"stage", "publish", "unpublish", "unstage", "unstage", "stage", "publish", "unpublish", "unstage", "unstage"}
		if !slices.Equal(d.calls, want) || len(kernel) > 0 || len(d.used) > 0 {
			t.Errorf("%s: calls %q, want %q; mounted: %v, in use: %v", name, d.calls, want, kernel, d.used)
		}
		empty(t, m.Root)
	}
}

// A claim that no container of the pod has is not set up.
func TestUnusedClaim(t *testing.T) {
	d := newDriver()
	m, _, _ := machine(t, d, persistentVolume(corev1.ReadWriteOnce))
	pod := podOf("u")
	pod.Spec.Containers[0].VolumeMounts = nil
	if err := m.SetUp(t.Context(), pod, nil); err != nil || len(d.calls) > 0 {
		t.Errorf("%v, calls %q", err, d.calls)
	}
}
