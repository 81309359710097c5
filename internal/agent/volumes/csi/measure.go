// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
)

// MeasureVolume asks the driver.
func (p *plugin) MeasureVolume(ctx context.Context, spec *volumes.Spec) (volumes.Usage, error) {
	v, err := p.volume(ctx, spec)
	if err != nil {
		return volumes.Usage{}, err
	}
	node, err := p.host.Drivers.Node(v.driver)
	if err != nil {
		return volumes.Usage{}, err
	}
	if v.able, err = capabilities(ctx, node); err != nil {
		return volumes.Usage{}, err
	}
	if !v.able.measure {
		return volumes.Usage{}, fmt.Errorf("metrics are not supported for %s", v.driver) // upstream's words
	}
	path := filepath.Join(v.dir, "mount")
	if v.block {
		path = p.mapPath(v.name, v.pod.UID)
	}
	answer, err := node.NodeGetVolumeStats(ctx, &csipb.NodeGetVolumeStatsRequest{VolumeId: v.handle, VolumePath: path})
	if err != nil {
		return volumes.Usage{}, err
	}
	return usage(answer.GetUsage())
}

// usage reads an answer. Sizes below zero are none, and units that are not known are left out, as with kubelet.
func usage(all []*csipb.VolumeUsage) (volumes.Usage, error) {
	var out volumes.Usage
	if all == nil {
		return out, errors.New("failed to get usage from response. usage is nil") // upstream's words
	}
	for _, u := range all {
		total, free, used := uint64(max(u.GetTotal(), 0)), uint64(max(u.GetAvailable(), 0)), uint64(max(u.GetUsed(), 0))
		switch u.GetUnit() {
		case csipb.VolumeUsage_BYTES:
			out.Bytes, out.Free, out.Used = total, free, used
		case csipb.VolumeUsage_INODES:
			out.Files, out.FilesFree, out.FilesUsed = total, free, used
		}
	}
	return out, nil
}
