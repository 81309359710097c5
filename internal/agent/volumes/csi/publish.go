// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
)

// publish publishes a volume with a file system to the pod, gives its files to the pod's group, and expands it.
func (p *publisher) publish(ctx context.Context, node csipb.NodeClient, v *volume) error {
	fresh, err := p.begin(v)
	if err != nil {
		return err
	}
	target := filepath.Join(v.dir, "mount")
	request, err := p.publishRequest(ctx, v, target)
	if err != nil {
		return err
	}
	if !v.ephemeral && v.able.stage {
		request.StagingTargetPath = p.globalMount(device{v.driver, v.handle})
	}
	// From here on the driver may have published the volume.
	if err := writeData(v.dir, p.data(v, "")); err != nil {
		return err
	}
	if _, err := node.NodePublishVolume(ctx, request); err != nil {
		if final(err) && fresh {
			err = errors.Join(err, p.unbegin(v, target))
		}
		return err
	}
	if fresh || !p.known(v) {
		if err := p.giveToGroup(ctx, v, target); err != nil {
			return fmt.Errorf("applyFSGroup failed for vol %s: %w", v.handle, err) // upstream's words
		}
	}
	if err := p.expandAtMount(ctx, node, v, target); err != nil {
		return err
	}
	p.note(v, p.host.Clock.Now())
	return nil
}

// unbegin notes that a volume is not published after all. An inline volume leaves nothing.
func (p *publisher) unbegin(v *volume, target string) error {
	if err := p.removeMountPoint(target); err != nil {
		return err // the driver says that it failed, and has mounted something: tear-down unpublishes
	}
	if v.ephemeral {
		return p.removeDir(v.dir)
	}
	return writeData(v.dir, p.data(v, staging))
}

// known reports whether this process has published the volume before.
func (p *memory) known(v *volume) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.published[v.pod.UID][v.name] != nil
}

// unpublish unpublishes a volume, unless it was never published.
func (p *publisher) unpublish(ctx context.Context, dir string, d data) error {
	if d.State == staging {
		return nil
	}
	node, err := p.host.Drivers.Node(d.Driver)
	if err != nil {
		return fmt.Errorf("kubernetes.io/csi: Unmounter.TearDownAt failed to get CSI client: %w", err) // upstream's words
	}
	if _, err := node.NodeUnpublishVolume(ctx, &csipb.NodeUnpublishVolumeRequest{
		VolumeId: d.Handle, TargetPath: filepath.Join(dir, "mount"),
	}); err != nil {
		return fmt.Errorf("kubernetes.io/csi: Unmounter.TearDownAt failed: %w", named(d.Driver, err)) // upstream's words
	}
	if err := p.removeMountPoint(filepath.Join(dir, "mount")); err != nil {
		return fmt.Errorf("kubernetes.io/csi: Unmounter.TearDownAt failed to clean mount dir [%s]: %w (CSI driver %s)",
			filepath.Join(dir, "mount"), err, d.Driver)
	}
	if d.ephemeral() {
		return nil
	}
	d.State = staging
	return writeData(dir, d) // a next attempt unstages only: the driver may know nothing of the volume by then
}
