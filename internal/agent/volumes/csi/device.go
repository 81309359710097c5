// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
)

// device identifies a volume at its driver.
type device struct{ driver, handle string }

// devices are the devices that pods of this process use. A device is locked while it is staged or unstaged, and while pods begin or end to
// use it.
type devices struct {
	mu     sync.Mutex
	all    map[device]*deviceState
	staged map[device]bool // by this process
}

type deviceState struct {
	holders int // of the lock, and those that wait for it
	lock    chan struct{}
}

func newDevices() *devices {
	return &devices{all: map[device]*deviceState{}, staged: map[device]bool{}}
}

// lock locks a device. A driver that hangs hinders only the pods that use the device.
func (d *devices) lock(ctx context.Context, of device) (unlock func(), err error) {
	d.mu.Lock()
	s := d.all[of]
	if s == nil {
		s = &deviceState{lock: make(chan struct{}, 1)}
		d.all[of] = s
	}
	s.holders++
	d.mu.Unlock()
	leave := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if s.holders--; s.holders == 0 {
			delete(d.all, of)
		}
	}
	select {
	case s.lock <- struct{}{}:
		return func() { <-s.lock; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, fmt.Errorf("wait for other pods that use volume %s of driver %s: %w", of.handle, of.driver, ctx.Err())
	}
}

func (d *devices) isStaged(of device) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.staged[of]
}

func (d *devices) setStaged(of device, staged bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.staged[of] = staged; !staged {
		delete(d.staged, of)
	}
}

// deviceDir returns the directory of a device.
func (p *disk) deviceDir(of device) string {
	return filepath.Join(p.host.Root, "plugins", Name, of.driver, fmt.Sprintf("%x", sha256.Sum256([]byte(of.handle))))
}

func (p *disk) globalMount(of device) string { return filepath.Join(p.deviceDir(of), "globalmount") }

// data returns what the volume's file says.
func (p *caller) data(v *volume, state string) data {
	attachment := sha256.Sum256([]byte(v.handle + v.driver + p.host.NodeName))
	return data{
		Driver: v.driver, Handle: v.handle, Volume: v.name, Node: p.host.NodeName, Attachment: fmt.Sprintf("csi-%x", attachment),
		Lifecycle: string(v.lifecycle()), Label: v.label, State: state,
	}
}

// begin notes on the disk that the pod uses the volume. It reports whether the volume was not published before.
func (p *publisher) begin(v *volume) (fresh bool, err error) {
	have, err := readData(v.dir)
	if err == nil && have.State != staging {
		return false, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err := os.MkdirAll(v.dir, 0o750); err != nil {
		return false, fmt.Errorf("kubernetes.io/csi: failed to create dir %q:  %w", v.dir, err)
	}
	return true, writeData(v.dir, p.data(v, staging))
}

// stage stages the device of a volume, unless this process has done so.
func (p *stager) stage(ctx context.Context, node csipb.NodeClient, v *volume) error {
	of := device{v.driver, v.handle}
	unlock, err := p.devices.lock(ctx, of)
	if err != nil {
		return v.failed(stepDevice, err)
	}
	defer unlock()
	others, err := p.users(of, v.name, v.dir)
	if err != nil {
		return v.failed(stepDevice, err)
	}
	if len(others) > 0 && v.once() {
		return v.failed(stepSetUp, errOnce)
	}
	fresh, err := p.begin(v)
	if err != nil {
		return v.failed(stepDevice, err)
	}
	if !v.able.stage || p.devices.isStaged(of) {
		return nil
	}
	if err := p.stageNow(ctx, node, v); err != nil {
		if final(err) && fresh && len(others) == 0 {
			// Nothing is staged, so that nothing has to be undone. The driver may know nothing of the volume.
			p.clean(p.globalMount(of), p.deviceDir(of), v.dir)
		}
		return v.failed(stepDevice, err)
	}
	p.devices.setStaged(of, true)
	return nil
}

// errOnce is upstream's.
var errOnce = errors.New("volume uses the ReadWriteOncePod access mode and is already in use by another pod")

// once reports whether one pod at the most may use the volume.
func (v *volume) once() bool {
	modes := v.spec.PersistentVolume.Spec.AccessModes
	return len(modes) == 1 && modes[0] == corev1.ReadWriteOncePod
}

// stageNow calls the driver.
func (p *stager) stageNow(ctx context.Context, node csipb.NodeClient, v *volume) error {
	of := device{v.driver, v.handle}
	target := p.globalMount(of)
	confidential, err := p.secret(ctx, v.secrets.stage, "NodeStageSecretRef")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(target, 0o750); err != nil {
		return fmt.Errorf("kubernetes.io/csi: attacher.MountDevice failed to create dir %q:  %w", target, err)
	}
	if err := writeData(p.deviceDir(of), data{Driver: v.driver, Handle: v.handle, Label: v.label}); err != nil {
		return err
	}
	_, err = node.NodeStageVolume(ctx, &csipb.NodeStageVolumeRequest{
		VolumeId: v.handle, PublishContext: v.publishContext, StagingTargetPath: target, VolumeCapability: v.capability(),
		Secrets: confidential, VolumeContext: v.context,
	})
	return err
}

// clean removes directories that are empty but for the file of the last two. It leaves what has contents, for tear-down.
func (p *disk) clean(mountPoint string, dirs ...string) {
	if p.removeMountPoint(mountPoint) != nil {
		return
	}
	for _, dir := range dirs {
		if removeData(dir) == nil {
			_ = os.Remove(dir)
		}
	}
}

// release removes the directory of a volume that is unpublished, and unstages its device if no other pod uses it. The file of the pod goes
// last: until then, the next process knows what it has to undo. A device that cannot be unstaged does not keep the pod: it has a file of
// its own, and is unstaged later.
func (p *stager) release(ctx context.Context, d data, dir string) error {
	of := device{d.Driver, d.Handle}
	unlock, err := p.devices.lock(ctx, of)
	if err != nil {
		return err
	}
	defer unlock()
	others, err := p.users(of, d.Volume, dir)
	if err != nil {
		return err
	}
	if len(others) == 0 {
		if p.unstage(ctx, of) == nil {
			defer p.letGo(of)
		} else {
			defer p.host.Drivers.LookAgain(ctx, of.driver)
		}
	}
	return p.removeDir(dir)
}

// unstage unstages a device that no pod uses. The caller has locked it.
func (p *stager) unstage(ctx context.Context, of device) error {
	dir := p.deviceDir(of)
	if _, err := readData(dir); errors.Is(err, fs.ErrNotExist) {
		return p.removeDevice(of) // it was never staged
	}
	p.devices.setStaged(of, false) // even if the driver returns an error, it may have unstaged the device: a next pod stages it again
	unstage := func() error { return p.unstageAt(ctx, of, p.globalMount(of)) }
	if err := p.operation(of.driver, "unmount_device", unstage); err != nil {
		return err
	}
	return p.removeDevice(of)
}

// unstageAt calls the driver, if it stages.
func (p *stager) unstageAt(ctx context.Context, of device, target string) error {
	node, err := p.host.Drivers.Node(of.driver)
	if err != nil {
		return fmt.Errorf("kubernetes.io/csi: attacher.UnmountDevice failed to create newCsiDriverClient: %w", err)
	}
	able, err := capabilities(ctx, node)
	if err != nil {
		return fmt.Errorf("kubernetes.io/csi: attacher.UnmountDevice failed to check whether STAGE_UNSTAGE_VOLUME set: %w", err)
	}
	if !able.stage {
		return nil
	}
	if _, err := node.NodeUnstageVolume(ctx, &csipb.NodeUnstageVolumeRequest{VolumeId: of.handle, StagingTargetPath: target}); err != nil {
		return fmt.Errorf("kubernetes.io/csi: attacher.UnmountDevice failed: %w", err)
	}
	return nil
}

// removeDevice removes the directory of a device that is not staged.
func (p *disk) removeDevice(of device) error {
	if err := p.removeMountPoint(p.globalMount(of)); err != nil {
		return err
	}
	if err := removeData(p.deviceDir(of)); err != nil {
		return err
	}
	if err := os.Remove(p.deviceDir(of)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("kubernetes.io/csi: failed to clean up global mount %s: %w", p.deviceDir(of), err)
	}
	return nil
}

// DriverRegistered unstages the driver's devices that no pod uses. A node that was killed may have left them, or the driver has refused.
func (p *plugin) DriverRegistered(ctx context.Context, driver string) error {
	var failed []error
	for _, of := range p.stagedDevices() {
		if of.driver != driver {
			continue
		}
		if err := p.unstageUnused(ctx, of); err != nil {
			failed = append(failed, err)
			p.notUnstaged(ctx, of, err)
		}
	}
	return errors.Join(append(failed, p.unstageUnusedBlocks(ctx, driver))...)
}

// notUnstaged tells of a device that could not be unstaged.
func (p *disk) notUnstaged(ctx context.Context, of device, err error) {
	if p.host.Event == nil || ctx.Err() != nil {
		return
	}
	node := &corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: p.host.NodeName}
	p.host.Event(node, corev1.EventTypeWarning, "FailedUnmountDevice",
		fmt.Sprintf("UnmountDevice failed for volume %s of driver %s: %v", of.handle, of.driver, err))
}

func (p *stager) unstageUnused(ctx context.Context, of device) error {
	unlock, err := p.devices.lock(ctx, of)
	if err != nil {
		return err
	}
	defer unlock()
	users, err := p.users(of, "", "")
	if err != nil || len(users) > 0 {
		return err
	}
	if err := p.unstage(ctx, of); err != nil {
		return err
	}
	p.letGo(of)
	return nil
}

// stagedDevices returns the devices that have a directory.
func (p *disk) stagedDevices() []device {
	found, err := filepath.Glob(filepath.Join(p.host.Root, "plugins", Name, "*", "*", dataFile))
	if err != nil {
		return nil
	}
	var out []device
	for _, path := range found {
		if d, err := readData(filepath.Dir(path)); err == nil && p.deviceDir(device{d.Driver, d.Handle}) == filepath.Dir(path) {
			out = append(out, device{d.Driver, d.Handle})
		}
	}
	slices.SortFunc(out, func(a, b device) int {
		return slices.Compare([]string{a.driver, a.handle}, []string{b.driver, b.handle})
	})
	return out
}
