// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/safepath"
	"github.com/mortise-dev/mortise/internal/agent/volumes"
)

// The directories of block devices, by the name of the persistent volume.
func (p *disk) blockDir() string {
	return filepath.Join(p.host.Root, "plugins", Name, "volumeDevices")
}
func (p *disk) stagingPath(name string) string {
	return filepath.Join(p.blockDir(), "staging", name)
}
func (p *disk) publishPath(name string, pod types.UID) string {
	return filepath.Join(p.blockDir(), "publish", name, string(pod))
}
func (p *disk) mapPath(name string, pod types.UID) string {
	return filepath.Join(p.blockDir(), name, "dev", string(pod))
}
func (p *disk) blockDataDir(name string) string { return filepath.Join(p.blockDir(), name, "data") }

// DevicePath returns the link to the pod's device.
func (p *disk) DevicePath(spec *volumes.Spec) string {
	if !blockVolume(spec) {
		return ""
	}
	return filepath.Join(p.host.DeviceDir(spec.Pod.UID, Name), spec.Name())
}

// mapDevice stages a block device, publishes it, and maps it to the pod.
//
// The pod's link is made before the driver is called, and removed when the driver has undone all: it says that the pod uses the device.
func (p *mapper) mapDevice(ctx context.Context, node csipb.NodeClient, v *volume) error {
	of := device{v.driver, v.handle}
	unlock, err := p.devices.lock(ctx, of)
	if err != nil {
		return v.failed(stepStage, err)
	}
	defer unlock()
	others, err := p.blockUsers(v.name, v.pod.UID)
	if err != nil {
		return v.failed(stepStage, err)
	}
	if len(others) > 0 && v.once() {
		return v.failed(stepStage, errOnce)
	}
	link := p.DevicePath(v.spec)
	publish := p.publishPath(v.name, v.pod.UID)
	fresh, err := p.beginBlock(v, link, publish)
	if err != nil {
		return v.failed(stepStage, err)
	}
	return p.measured(v, "map_volume", func() error {
		staged, err := p.stageBlock(ctx, node, v, of)
		if err != nil {
			if final(err) && fresh && len(others) == 0 {
				_ = os.Remove(link)
				p.cleanBlock(v.name)
			}
			return v.failed(stepStage, err)
		}
		path, err := p.publishBlock(ctx, node, v, staged)
		if err != nil {
			return v.failed(stepMap, err)
		}
		if err := p.host.MapDevice(path, p.mapPath(v.name, v.pod.UID), link); err != nil {
			return v.failed(stepLink, err)
		}
		if err := p.expandAtMount(ctx, node, v, path); err != nil {
			return err
		}
		p.note(v, p.host.Clock.Now())
		return nil
	})
}

// beginBlock notes on the disk that the pod uses the device.
func (p *mapper) beginBlock(v *volume, link, target string) (fresh bool, err error) {
	dir := p.blockDataDir(v.name)
	for _, d := range []string{filepath.Dir(link), dir} {
		if err := os.MkdirAll(d, 0o750); err != nil {
			return false, fmt.Errorf("kubernetes.io/csi: failed to create dir %s:  %w", d, err)
		}
	}
	d := p.data(v, "")
	d.Lifecycle = "" // kubelet's file has none
	if err := writeData(dir, d); err != nil {
		return false, err
	}
	err = os.Symlink(target, link)
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	return err == nil, err
}

// stageBlock calls the driver, if it stages.
func (p *mapper) stageBlock(ctx context.Context, node csipb.NodeClient, v *volume, of device) (string, error) {
	if !v.able.stage {
		return "", nil
	}
	target := p.stagingPath(v.name)
	if p.devices.isStaged(of) {
		return target, nil
	}
	confidential, err := p.secret(ctx, v.secrets.stage, "NodeStageSecretRef")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(target, 0o750); err != nil {
		return "", fmt.Errorf("kubernetes.io/csi: blockMapper.stageVolumeForBlock failed to create dir %s: %w", target, err)
	}
	if _, err := node.NodeStageVolume(ctx, &csipb.NodeStageVolumeRequest{
		VolumeId: v.handle, PublishContext: v.publishContext, StagingTargetPath: target, VolumeCapability: v.capability(),
		Secrets: confidential, VolumeContext: v.context,
	}); err != nil {
		return "", err
	}
	p.devices.setStaged(of, true)
	return target, nil
}

// publishBlock calls the driver, and returns the device.
func (p *mapper) publishBlock(ctx context.Context, node csipb.NodeClient, v *volume, staged string) (string, error) {
	target := p.publishPath(v.name, v.pod.UID)
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return "", fmt.Errorf("kubernetes.io/csi: blockMapper.publishVolumeForBlock failed to create dir %s:  %w", filepath.Dir(target), err)
	}
	request, err := p.publishRequest(ctx, v, target)
	if err != nil {
		return "", err
	}
	request.StagingTargetPath = staged
	if _, err := node.NodePublishVolume(ctx, request); err != nil {
		return "", err
	}
	path, err := filepath.EvalSymlinks(target)
	if err != nil {
		return "", fmt.Errorf("find device of volume %s: %w", v.name, err)
	}
	return path, nil
}

// TearDownDevice unmaps and unpublishes a block device, and unstages it if no other pod uses it.
func (p *mapper) TearDownDevice(ctx context.Context, r volumes.Reconstructed) error {
	p.forget(r.PodUID, r.Name)
	ctx = extension.ForVolume(ctx, r.Name)
	d, err := readData(p.blockDataDir(r.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return os.Remove(r.Dir) // the driver was never called
	}
	if err != nil {
		return fmt.Errorf("kubernetes.io/csi: unmapper failed to load volume data file [%s]: %w", p.blockDataDir(r.Name), err)
	}
	of := device{d.Driver, d.Handle}
	unlock, err := p.devices.lock(ctx, of)
	if err != nil {
		return err
	}
	defer unlock()
	if err := p.unmap(ctx, r, d); err != nil {
		return err
	}
	p.unuse(wait{r.PodUID, r.Name})
	others, err := p.blockUsers(r.Name, r.PodUID)
	if err != nil {
		return err
	}
	if len(others) == 0 {
		if p.unstageBlock(ctx, r.Name, of) == nil {
			defer p.letGo(of)
		} else {
			defer p.host.Drivers.LookAgain(ctx, of.driver) // the device has a file of its own, and does not keep the pod
		}
	}
	if err := os.Remove(r.Dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove link to device: %w", err)
	}
	_ = os.Remove(filepath.Dir(r.Dir)) // if it is empty
	return nil
}

// unmap undoes the map, and calls the driver.
func (p *mapper) unmap(ctx context.Context, r volumes.Reconstructed, d data) error {
	if err := p.host.UnmapDevice(p.mapPath(r.Name, r.PodUID)); err != nil {
		return err
	}
	node, err := p.host.Drivers.Node(d.Driver)
	if err != nil {
		return fmt.Errorf("kubernetes.io/csi: blockMapper.UnmapPodDevice failed to get CSI client: %w", err)
	}
	target := p.publishPath(r.Name, r.PodUID)
	if _, err := node.NodeUnpublishVolume(ctx, &csipb.NodeUnpublishVolumeRequest{VolumeId: d.Handle, TargetPath: target}); err != nil {
		return fmt.Errorf("kubernetes.io/csi: blockMapper.unpublishVolumeForBlock failed: %w", named(d.Driver, err))
	}
	if err := p.removeMountPoint(target); err != nil {
		return err
	}
	return nil
}

// unstageBlock unstages a device that no pod uses. The caller has locked it.
func (p *mapper) unstageBlock(ctx context.Context, name string, of device) error {
	target := p.stagingPath(name)
	p.devices.setStaged(of, false)
	if _, err := os.Lstat(target); err == nil {
		if err := p.unstageAt(ctx, of, target); err != nil {
			return err
		}
		if mounted, err := p.host.Mounter.Below(filepath.Dir(target)); err != nil {
			return fmt.Errorf("look for mounts: %w", err)
		} else if len(mounted) > 0 && contains(mounted, target) {
			return fmt.Errorf("kubernetes.io/csi: %s is still mounted after the driver has unstaged it", target)
		}
		if err := safepath.RemoveAll(target); err != nil {
			return fmt.Errorf("kubernetes.io/csi: blockMapper.unstageVolumeForBlock failed to remove staging path after NodeUnstageVolume() "+
				"error [%s]: %w", target, err)
		}
	}
	p.cleanBlock(name)
	return nil
}

// cleanBlock removes the directories of a device that is not staged. What has contents stays.
func (p *disk) cleanBlock(name string) {
	_ = os.Remove(filepath.Join(p.blockDir(), "publish", name))
	_ = os.Remove(p.stagingPath(name))
	_ = os.Remove(filepath.Join(p.blockDir(), name, "dev"))
	if removeData(p.blockDataDir(name)) == nil {
		_ = os.Remove(p.blockDataDir(name))
		_ = os.Remove(filepath.Join(p.blockDir(), name))
	}
}

// contains reports whether a path or something below it is in the list.
func contains(all []string, dir string) bool {
	for _, path := range all {
		if path == dir || len(path) > len(dir) && path[:len(dir)+1] == dir+"/" {
			return true
		}
	}
	return false
}

// blockUsers returns the pods that use a block device, without one.
func (p *disk) blockUsers(name string, without types.UID) ([]string, error) {
	pods := filepath.Join(p.host.Root, "pods")
	entries, err := os.ReadDir(pods)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	var out []string
	for _, e := range entries {
		if e.Name() == string(without) {
			continue
		}
		if _, err := os.Lstat(filepath.Join(pods, e.Name(), "volumeDevices", dirName, name)); err == nil {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// blockData returns what the files of block devices say, by name.
func (p *disk) blockData() map[string]data {
	out := map[string]data{}
	entries, err := os.ReadDir(p.blockDir())
	if err != nil {
		return out
	}
	for _, e := range entries {
		if d, err := readData(p.blockDataDir(e.Name())); err == nil {
			out[e.Name()] = d
		}
	}
	return out
}

// unstageUnusedBlocks unstages the block devices of a driver that no pod uses.
func (p *mapper) unstageUnusedBlocks(ctx context.Context, driver string) error {
	var failed []error
	for name, d := range p.blockData() {
		if d.Driver != driver {
			continue
		}
		of := device{d.Driver, d.Handle}
		if err := p.unstageUnusedBlock(ctx, name, of); err != nil {
			failed = append(failed, err)
			p.notUnstaged(ctx, of, err)
		}
	}
	return errors.Join(failed...)
}

func (p *mapper) unstageUnusedBlock(ctx context.Context, name string, of device) error {
	unlock, err := p.devices.lock(ctx, of)
	if err != nil {
		return err
	}
	defer unlock()
	users, err := p.blockUsers(name, "")
	if err != nil || len(users) > 0 {
		return err
	}
	if err := p.unstageBlock(ctx, name, of); err != nil {
		return err
	}
	p.letGo(of)
	return nil
}
