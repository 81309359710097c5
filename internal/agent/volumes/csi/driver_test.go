// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
)

// fakeDriver is a driver whose stages and publications are mounts of the fake kernel. It is idempotent, as the specification requires.
type fakeDriver struct {
	csipb.NodeClient
	mounter volumes.Mounter
	able    []csipb.NodeServiceCapability_RPC_Type
	class   *storagev1.CSIDriver
	missing bool

	mu       sync.Mutex
	calls    []string
	fail     map[string]error // by call
	expanded int64
	stats    []*csipb.VolumeUsage
	last     *csipb.NodePublishVolumeRequest
	attached bool

	exhausted bool
	used      map[string]bool
	again     []string
}

func (d *fakeDriver) called(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, name)
	return d.fail[name]
}

// Node, Driver and WakeAtRegistration implement volumes.Drivers.
func (d *fakeDriver) Node(name string) (csipb.NodeClient, error) {
	if d.missing {
		return nil, fmt.Errorf("driver name %s not found in the list of registered CSI drivers", name)
	}
	return d, nil
}
func (d *fakeDriver) Driver(context.Context, string) (*storagev1.CSIDriver, error) {
	return d.class, nil
}
func (d *fakeDriver) WakeAtRegistration(string, types.UID) {}
func (d *fakeDriver) LookAgain(_ context.Context, driver string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.again = append(d.again, driver)
}

// Attached, Use and Release implement volumes.Attachments.
func (d *fakeDriver) Attached(_ context.Context, driver, handle string, _ types.UID) (map[string]string, bool, error) {
	d.Use(driver, handle)
	return map[string]string{"device": "sdb"}, d.attached, nil
}
func (d *fakeDriver) Exhausted(context.Context, string, string) bool { return d.exhausted }
func (d *fakeDriver) Use(driver, handle string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.used[driver+"^"+handle] = true
}
func (d *fakeDriver) Release(driver, handle string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.used, driver+"^"+handle)
}

func (d *fakeDriver) NodeGetCapabilities(
	context.Context, *csipb.NodeGetCapabilitiesRequest, ...grpc.CallOption,
) (*csipb.NodeGetCapabilitiesResponse, error) {
	out := &csipb.NodeGetCapabilitiesResponse{}
	for _, c := range d.able {
		out.Capabilities = append(out.Capabilities, &csipb.NodeServiceCapability{Type: &csipb.NodeServiceCapability_Rpc{
			Rpc: &csipb.NodeServiceCapability_RPC{Type: c},
		}})
	}
	return out, nil
}

func (d *fakeDriver) NodeStageVolume(
	_ context.Context, r *csipb.NodeStageVolumeRequest, _ ...grpc.CallOption,
) (*csipb.NodeStageVolumeResponse, error) {
	if err := d.called("stage"); err != nil {
		return nil, err
	}
	return &csipb.NodeStageVolumeResponse{}, d.mount(r.StagingTargetPath)
}

// mount mounts at a directory, if nothing is mounted there.
func (d *fakeDriver) mount(dir string) error {
	mounted, err := d.mounter.IsMountPoint(dir)
	if err != nil || mounted {
		return err
	}
	return d.mounter.Tmpfs(dir, 0)
}

func (d *fakeDriver) NodeUnstageVolume(
	_ context.Context, r *csipb.NodeUnstageVolumeRequest, _ ...grpc.CallOption,
) (*csipb.NodeUnstageVolumeResponse, error) {
	if err := d.called("unstage"); err != nil {
		return nil, err
	}
	return &csipb.NodeUnstageVolumeResponse{}, d.mounter.Unmount(r.StagingTargetPath)
}

func (d *fakeDriver) NodePublishVolume(
	_ context.Context, r *csipb.NodePublishVolumeRequest, _ ...grpc.CallOption,
) (*csipb.NodePublishVolumeResponse, error) {
	if err := d.called("publish"); err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.last = r
	d.mu.Unlock()
	if r.GetVolumeCapability().GetBlock() != nil {
		return &csipb.NodePublishVolumeResponse{}, os.WriteFile(r.TargetPath, nil, 0o600)
	}
	if err := os.Mkdir(r.TargetPath, 0o755); err != nil && !os.IsExist(err) {
		return nil, err
	}
	return &csipb.NodePublishVolumeResponse{}, d.mount(r.TargetPath)
}

func (d *fakeDriver) NodeUnpublishVolume(
	_ context.Context, r *csipb.NodeUnpublishVolumeRequest, _ ...grpc.CallOption,
) (*csipb.NodeUnpublishVolumeResponse, error) {
	if err := d.called("unpublish"); err != nil {
		return nil, err
	}
	if err := d.mounter.Unmount(r.TargetPath); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(r.TargetPath); err != nil {
		return nil, err
	}
	return &csipb.NodeUnpublishVolumeResponse{}, nil
}

func (d *fakeDriver) NodeExpandVolume(
	_ context.Context, r *csipb.NodeExpandVolumeRequest, _ ...grpc.CallOption,
) (*csipb.NodeExpandVolumeResponse, error) {
	if err := d.called("expand"); err != nil {
		return nil, err
	}
	d.expanded = r.GetCapacityRange().GetRequiredBytes()
	return &csipb.NodeExpandVolumeResponse{CapacityBytes: d.expanded}, nil
}

func (d *fakeDriver) NodeGetVolumeStats(
	context.Context, *csipb.NodeGetVolumeStatsRequest, ...grpc.CallOption,
) (*csipb.NodeGetVolumeStatsResponse, error) {
	return &csipb.NodeGetVolumeStatsResponse{Usage: d.stats}, d.called("stats")
}

// newDriver makes a driver with all capabilities whose volumes need no attachment.
func newDriver() *fakeDriver {
	file := storagev1.FileFSGroupPolicy
	return &fakeDriver{
		able: []csipb.NodeServiceCapability_RPC_Type{
			csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csipb.NodeServiceCapability_RPC_EXPAND_VOLUME,
			csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		},
		class: &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{
			AttachRequired: new(false), FSGroupPolicy: &file,
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral},
		}},
		attached: true, fail: map[string]error{}, used: map[string]bool{},
	}
}

// factory makes the plug-in with the driver.
func (d *fakeDriver) factory(host *volumes.Host) volumes.Plugin {
	d.mounter = host.Mounter
	host.Drivers, host.Attachments, host.NodeName = d, d, "n1"
	return New(host)
}

// persistentVolume is a volume of the driver.
func persistentVolume(modes ...corev1.PersistentVolumeAccessMode) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: modes,
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			Driver: "d.example.com", VolumeHandle: "h1", VolumeAttributes: map[string]string{"a": "b"},
		}},
	}}
}

func blockPV() *corev1.PersistentVolume {
	pv := persistentVolume(corev1.ReadWriteOnce)
	pv.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
	return pv
}

var claimed = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}

// empty checks that nothing of the volumes is left below the node's directory.
func empty(t *testing.T, root string) {
	t.Helper()
	for _, pattern := range []string{"plugins/kubernetes.io/csi/*/*", "pods/*/volumes/*/*", "pods/*/volumeDevices/*/*"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			if base := filepath.Base(path); base != "staging" && base != "publish" {
				t.Errorf("left: %s", path)
			}
		}
	}
}

var errInternal = status.Error(codes.Internal, "no luck")
