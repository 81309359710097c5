// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package csi implements the volumes of CSI drivers: persistent volumes, and inline volumes of pods.
//
//	csi.go         the plug-in: SetUp, TearDown
//	volume.go      what a pod's volume says, and what its CSIDriver says
//	attach.go      the wait for the attachment, and for the driver
//	device.go      the staging of a device, once for all pods of the node that use it
//	publish.go     publishing to one pod
//	request.go     requests for drivers: capabilities, secrets, tokens
//	block.go       block devices
//	expand.go      expansion on the node, and the claim's status
//	ownership.go   the pod's group on the files of a volume
//	selinux.go     the SELinux label as a mount option
//	measure.go     usage
//	data.go        vol_data.json
//	references.go  which pods use a device
//
// The layout is kubelet's, so that a node may be taken over either way:
//
//	ROOT/pods/UID/volumes/kubernetes.io~csi/PV/vol_data.json                       written before the driver is called
//	ROOT/pods/UID/volumes/kubernetes.io~csi/PV/mount                               the driver publishes here
//	ROOT/plugins/kubernetes.io/csi/DRIVER/SHA256/vol_data.json, …/globalmount      the driver stages here
//	ROOT/pods/UID/volumeDevices/kubernetes.io~csi/PV                               link to the block device
//	ROOT/plugins/kubernetes.io/csi/volumeDevices/{staging,publish}/PV, …/PV/{data,dev}
//
// Files on the disk are the only state that matters. What the plug-in has in memory spares calls of drivers.
//
//	step                                       the disk says
//	write vol_data.json of the pod             the pod uses the device; it is not published ("mortise.dev/state": "staging")
//	write vol_data.json of the device
//	NodeStageVolume
//	write vol_data.json of the pod again       the volume may be published
//	NodePublishVolume
//
// Tear-down goes backwards: NodeUnpublishVolume, NodeUnstageVolume if no other pod's file names the device, and the pod's file last. So a
// node that is killed between any two steps knows what it still has to undo.
package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/volumes"
)

// Name is the plug-in's name.
const Name = "kubernetes.io/csi"

// republishPeriod is how often volumes are published again whose CSIDriver requires it.
const republishPeriod = time.Minute

// plugin is the uppermost of the layers of this package. Each layer stands on the one below: disk and memory, caller, expander, publisher,
// stager, mapper.
type plugin struct{ *mapper }

// disk finds and removes what is on the disk.
type disk struct{ host *volumes.Host }

// memory is what this process knows.
type memory struct {
	mu        sync.Mutex
	published map[types.UID]map[string]*publication // by pod and name of the volume
	waits     map[wait]time.Time                    // since when
}

// caller makes requests for drivers.
type caller struct {
	*disk
	*memory
	selinux func() bool // whether the machine has SELinux
}

// expander expands volumes.
type expander struct{ *caller }

// publisher publishes volumes with file systems.
type publisher struct{ *expander }

// stager stages the devices of volumes.
type stager struct {
	*publisher
	devices *devices
}

// mapper maps block devices.
type mapper struct{ *stager }

// publication is a volume that this process has published.
type publication struct {
	at        time.Time
	republish bool
}

var _ interface {
	volumes.Plugin
	volumes.Renewer
	volumes.BlockMapper
	volumes.UsageProvider
	volumes.DriverFollower
} = (*plugin)(nil)

// New makes the plug-in.
func New(host *volumes.Host) volumes.Plugin {
	known := &memory{published: map[types.UID]map[string]*publication{}, waits: map[wait]time.Time{}}
	calls := &caller{&disk{host}, known, machineHasSELinux}
	return &plugin{&mapper{&stager{&publisher{&expander{calls}}, newDevices()}}}
}

func (p *plugin) Name() string { return Name }

func (p *plugin) CanSupport(spec *volumes.Spec) bool {
	if spec.PersistentVolume != nil {
		return spec.PersistentVolume.Spec.CSI != nil
	}
	return spec.Volume.CSI != nil
}

// Path returns the directory that the driver publishes to.
func (p *plugin) Path(spec *volumes.Spec) string {
	if blockVolume(spec) {
		return ""
	}
	return filepath.Join(p.dir(spec), "mount")
}

func (p *disk) dir(spec *volumes.Spec) string {
	return p.host.VolumeDir(spec.Pod.UID, Name, spec.Name())
}

func (p *plugin) Attributes(spec *volumes.Spec) volumes.Attributes {
	return volumes.Attributes{ReadOnly: readOnly(spec), Measure: volumes.MeasureDriver}
}

// SetUp attaches, stages and publishes the volume, and expands it if its claim has grown.
func (p *plugin) SetUp(ctx context.Context, spec *volumes.Spec) error {
	ctx = extension.For(ctx, spec.Pod.Namespace, spec.Pod.Name)
	if spec.PersistentVolume != nil {
		ctx = extension.ForVolume(ctx, spec.PersistentVolume.Name)
	}
	v, err := p.volume(ctx, spec)
	if err != nil {
		return err
	}
	if done, err := p.current(ctx, v); done || err != nil {
		return err
	}
	node, err := p.node(v)
	if err != nil {
		return err
	}
	context, err := p.attached(ctx, v)
	if err != nil {
		return err
	}
	v.publishContext = context
	if !v.attach && !v.ephemeral && !p.devices.isStaged(device{v.driver, v.handle}) {
		// It may have waited for an attachment before its CSIDriver said that there is none.
		p.host.Attachments.Release(v.driver, v.handle)
	}
	if v.able, err = capabilities(ctx, node); err != nil {
		return v.failed(stepSetUp, err)
	}
	if v.block {
		return p.mapDevice(ctx, node, v)
	}
	return p.mount(ctx, node, v)
}

// current reports whether nothing is to be done for the volume.
func (p *plugin) current(ctx context.Context, v *volume) (bool, error) {
	p.mu.Lock()
	done := p.published[v.pod.UID][v.name]
	p.mu.Unlock()
	if done == nil || done.republish && p.host.Clock.Since(done.at) >= republishPeriod {
		return false, nil
	}
	if !needsExpansion(v) {
		return true, nil
	}
	return true, p.expandOnline(ctx, v)
}

// mount stages a volume with a file system and publishes it.
func (p *plugin) mount(ctx context.Context, node csipb.NodeClient, v *volume) error {
	v.label = p.label(v)
	if !v.ephemeral {
		if err := p.measured(v, "mount_device", func() error { return p.stage(ctx, node, v) }); err != nil {
			return err
		}
	}
	return p.measured(v, "volume_mount", func() error {
		if err := p.publish(ctx, node, v); err != nil {
			return v.failed(stepSetUp, err)
		}
		return nil
	})
}

// measured notes an operation on a volume in the metrics.
func (p *caller) measured(v *volume, operation string, do func() error) error {
	return p.operation(v.driver, operation, do)
}

// operation notes an operation on a driver's volume in the metrics.
func (p *caller) operation(driver, operation string, do func() error) error {
	start := p.host.Clock.Now()
	err := do()
	if p.host.Operations != nil {
		p.host.Operations.Operation(Name+":"+driver, operation, p.host.Clock.Since(start), err)
	}
	return err
}

// note remembers that a volume is published.
func (p *memory) note(v *volume, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.published[v.pod.UID] == nil {
		p.published[v.pod.UID] = map[string]*publication{}
	}
	p.published[v.pod.UID][v.name] = &publication{now, v.republish}
}

// forget drops a volume.
func (p *memory) forget(pod types.UID, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.published[pod], name)
	delete(p.waits, wait{pod, name})
}

// NextRenewal returns when the first of the pod's volumes is published again.
func (p *memory) NextRenewal(pod types.UID) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	var first time.Time
	for _, done := range p.published[pod] {
		if next := done.at.Add(republishPeriod); done.republish && (first.IsZero() || next.Before(first)) {
			first = next
		}
	}
	return first
}

// ForgetPod drops what is in memory of a pod.
func (p *memory) ForgetPod(pod types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.published, pod)
	for w := range p.waits {
		if w.pod == pod {
			delete(p.waits, w)
		}
	}
}

// TearDown unpublishes the volume, and unstages its device if no other pod uses it.
func (p *plugin) TearDown(ctx context.Context, r volumes.Reconstructed) error {
	p.forget(r.PodUID, r.Name)
	data, err := readData(r.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return p.host.Remove(r.Dir) // the driver was never called
	}
	if err != nil {
		return fmt.Errorf("kubernetes.io/csi: unmounter failed to load volume data file [%s]: %w", filepath.Join(r.Dir, "mount"), err)
	}
	if !data.ephemeral() {
		ctx = extension.ForVolume(ctx, r.Name)
	}
	if err := p.operation(data.Driver, "volume_unmount", func() error { return p.unpublish(ctx, r.Dir, data) }); err != nil {
		return err
	}
	if data.ephemeral() {
		return p.removeDir(r.Dir)
	}
	return p.release(ctx, data, r.Dir)
}

// removeDir removes the directory of a volume that is unpublished. The file goes after the mount point.
func (p *disk) removeDir(dir string) error {
	if err := p.removeMountPoint(filepath.Join(dir, "mount")); err != nil {
		return err
	}
	if err := removeData(dir); err != nil {
		return err
	}
	return p.host.Remove(dir)
}

// removeMountPoint removes the directory that a driver should have removed. It never removes one where something is mounted, or that has
// contents.
func (p *disk) removeMountPoint(dir string) error {
	mounted, err := p.mounted(dir)
	if err != nil {
		return err
	}
	if mounted {
		return fmt.Errorf("kubernetes.io/csi: %s is still mounted after the driver has unmounted it", dir)
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("kubernetes.io/csi: failed to remove dir [%s]: %w", dir, err)
	}
	return nil
}

// mounted reads the kernel's list of mounts: a mount whose server is gone does not respond.
func (p *disk) mounted(dir string) (bool, error) {
	all, err := p.host.Mounter.Below(filepath.Dir(dir))
	if err != nil {
		return false, fmt.Errorf("look for mounts: %w", err)
	}
	for _, path := range all {
		if path == dir {
			return true, nil
		}
	}
	return false, nil
}
