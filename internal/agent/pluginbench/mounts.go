// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package pluginbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// publishes stages, publishes, measures, unpublishes and unstages the volume; each twice, because kubelet repeats calls.
func (d *volumeBench) publishes(ctx context.Context) finding {
	v := d.Volume
	if v.ID == "" {
		return skip("no volume was given")
	}
	staging := filepath.Join(d.Dir, "plugins", "kubernetes.io", "csi", d.report.Name, "volume", "globalmount")
	target := filepath.Join(d.Dir, "pods", "bench", "volumes", "kubernetes.io~csi", "volume", "mount")
	if !d.stage {
		staging = ""
	}
	for _, dir := range []string{staging, filepath.Dir(target)} {
		if dir == "" {
			continue
		}
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return fail("make directory: %v", err)
		}
	}
	ability := &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: v.FSType}},
	}
	return d.check(ctx, func(ctx context.Context, c *grpc.ClientConn) finding {
		node := csi.NewNodeClient(c)
		var done []string
		for _, one := range []struct {
			name string
			has  bool
			call func() error
		}{
			{"NodeStageVolume", d.stage, func() error {
				_, err := node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
					VolumeId: v.ID, StagingTargetPath: staging, VolumeCapability: ability, VolumeContext: v.Attributes,
					PublishContext: v.Publish, Secrets: v.Secrets,
				})
				return err
			}},
			{"NodePublishVolume", true, func() error {
				_, err := node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
					VolumeId: v.ID, StagingTargetPath: staging, TargetPath: target, VolumeCapability: ability, VolumeContext: v.Attributes,
					PublishContext: v.Publish, Secrets: v.Secrets,
				})
				if err == nil {
					_, err = os.Stat(target)
				}
				return err
			}},
			{"NodeGetVolumeStats", d.stats, func() error {
				answer, err := node.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{
					VolumeId: v.ID, VolumePath: target, StagingTargetPath: staging,
				})
				if err == nil && len(answer.GetUsage()) == 0 {
					err = errors.New("no usage in the answer")
				}
				return err
			}},
			{"NodeUnpublishVolume", true, func() error {
				_, err := node.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.ID, TargetPath: target})
				return err
			}},
			{"NodeUnstageVolume", d.stage, func() error {
				_, err := node.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.ID, StagingTargetPath: staging})
				return err
			}},
		} {
			if !one.has {
				continue
			}
			for _, when := range []string{"", " a second time, as kubelet does after a restart"} {
				if err := one.call(); err != nil {
					return fail("%s%s: %v", one.name, when, err).kubeletSays(fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", v.ID, err))
				}
			}
			done = append(done, one.name)
		}
		if _, err := os.Stat(target); err == nil {
			return fail("NodeUnpublishVolume leaves %s", target).kubeletSays("orphaned pod found, but volume paths are still present on disk")
		}
		return ok("%s, each twice", strings.Join(done, ", "))
	})
}
