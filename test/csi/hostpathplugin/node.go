// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// node is the node service.
type node struct {
	csipb.UnimplementedNodeServer
	*driver
}

// NodeGetInfo implements the node service.
func (n node) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	out := &csipb.NodeGetInfoResponse{NodeId: n.node, MaxVolumesPerNode: n.volumesPerNode}
	if n.topology {
		out.AccessibleTopology = n.where()[0]
	}
	return out, nil
}

// NodeGetCapabilities implements the node service.
func (n node) NodeGetCapabilities(context.Context, *csipb.NodeGetCapabilitiesRequest) (*csipb.NodeGetCapabilitiesResponse, error) {
	types := []csipb.NodeServiceCapability_RPC_Type{csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS, csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER}
	if n.expandOnNode {
		types = append(types, csipb.NodeServiceCapability_RPC_EXPAND_VOLUME)
	}
	out := &csipb.NodeGetCapabilitiesResponse{}
	for _, t := range types {
		out.Capabilities = append(out.Capabilities, &csipb.NodeServiceCapability{
			Type: &csipb.NodeServiceCapability_Rpc{Rpc: &csipb.NodeServiceCapability_RPC{Type: t}}})
	}
	return out, nil
}

// stagedOnlyAt refuses a path if the volume is staged at another.
func (v *volume) stagedOnlyAt(path string) error {
	if v.Staged != "" && v.Staged != path {
		return status.Errorf(codes.Internal, "volume %s is staged at %s", v.ID, v.Staged)
	}
	return nil
}

// at returns a volume that is staged or published at a path.
func (d *driver) at(id, path string) (*volume, error) {
	v, err := d.have(id)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(v.Published, path) && v.Staged != path {
		return nil, status.Errorf(codes.NotFound, "volume %s is not at %s", v.ID, path)
	}
	return v, nil
}

// NodeStageVolume implements the node service.
func (n node) NodeStageVolume(_ context.Context, q *csipb.NodeStageVolumeRequest) (*csipb.NodeStageVolumeResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	v, err := n.have(q.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if err := v.stagedOnlyAt(q.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	v.Staged = q.GetStagingTargetPath()
	return &csipb.NodeStageVolumeResponse{}, n.save()
}

// NodeUnstageVolume implements the node service.
func (n node) NodeUnstageVolume(_ context.Context, q *csipb.NodeUnstageVolumeRequest) (*csipb.NodeUnstageVolumeResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	v, err := n.have(q.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if len(v.Published) > 0 {
		return nil, status.Errorf(codes.Internal, "volume %s is still published at %q", v.ID, v.Published)
	}
	if err := v.stagedOnlyAt(q.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	v.Staged = ""
	return &csipb.NodeUnstageVolumeResponse{}, n.save()
}

// NodePublishVolume implements the node service.
func (n node) NodePublishVolume(_ context.Context, q *csipb.NodePublishVolumeRequest) (*csipb.NodePublishVolumeResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	ephemeral := q.GetVolumeContext()["csi.storage.k8s.io/ephemeral"] == "true"
	if ephemeral && n.Volumes[q.GetVolumeId()] == nil {
		v := &volume{ID: q.GetVolumeId(), Name: "ephemeral-" + q.GetVolumeId(), Size: defaultSize, Ephemeral: true}
		if err := n.fill(v); err != nil {
			return nil, err
		}
		n.Volumes[v.ID] = v
	}
	v, err := n.have(q.GetVolumeId())
	if err != nil {
		return nil, err
	}
	target, block := q.GetTargetPath(), q.GetVolumeCapability().GetBlock() != nil
	single := q.GetVolumeCapability().GetAccessMode().GetMode() == csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	switch {
	case v.Block != block:
		return nil, status.Errorf(codes.InvalidArgument, "volume %s is of another mode", v.ID)
	case !ephemeral && v.Staged == "":
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is not staged", v.ID)
	case !ephemeral && v.Staged != q.GetStagingTargetPath():
		return nil, status.Errorf(codes.InvalidArgument, "volume %s is staged at %s", v.ID, v.Staged)
	case slices.Contains(v.Published, target):
		return &csipb.NodePublishVolumeResponse{}, nil
	case len(v.Published) > 0 && (single || v.Single || ephemeral):
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is published at %q", v.ID, v.Published)
	}
	if err := publish(n.path(v.ID), target, block, q.GetReadonly()); err != nil {
		return nil, internal(err)
	}
	v.Published, v.Single = append(v.Published, target), single
	return &csipb.NodePublishVolumeResponse{}, n.save()
}

// NodeUnpublishVolume implements the node service.
func (n node) NodeUnpublishVolume(_ context.Context, q *csipb.NodeUnpublishVolumeRequest) (*csipb.NodeUnpublishVolumeResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := unpublish(q.GetTargetPath()); err != nil {
		return nil, internal(err)
	}
	v := n.Volumes[q.GetVolumeId()]
	if v == nil {
		return &csipb.NodeUnpublishVolumeResponse{}, nil
	}
	v.Published = slices.DeleteFunc(v.Published, func(p string) bool { return p == q.GetTargetPath() })
	if v.Block && len(v.Published) == 0 {
		if err := releaseDevice(n.path(v.ID)); err != nil {
			return nil, internal(err)
		}
	}
	if v.Ephemeral && len(v.Published) == 0 {
		return &csipb.NodeUnpublishVolumeResponse{}, n.drop(v)
	}
	return &csipb.NodeUnpublishVolumeResponse{}, n.save()
}

// NodeExpandVolume implements the node service.
func (n node) NodeExpandVolume(_ context.Context, q *csipb.NodeExpandVolumeRequest) (*csipb.NodeExpandVolumeResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	v, err := n.at(q.GetVolumeId(), q.GetVolumePath())
	if err != nil {
		return nil, err
	}
	return &csipb.NodeExpandVolumeResponse{CapacityBytes: v.Size}, nil
}

// NodeGetVolumeStats implements the node service.
func (n node) NodeGetVolumeStats(_ context.Context, q *csipb.NodeGetVolumeStatsRequest) (*csipb.NodeGetVolumeStatsResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	v, err := n.at(q.GetVolumeId(), q.GetVolumePath())
	if err != nil {
		return nil, err
	}
	out := &csipb.NodeGetVolumeStatsResponse{Usage: []*csipb.VolumeUsage{{Unit: csipb.VolumeUsage_BYTES, Total: v.Size}}}
	if v.Block {
		return out, nil
	}
	var s unix.Statfs_t
	if err := unix.Statfs(q.GetVolumePath(), &s); err != nil {
		return nil, internal(err)
	}
	free, total := int64(s.Bavail)*s.Bsize, int64(s.Blocks)*s.Bsize
	out.Usage = []*csipb.VolumeUsage{
		{Unit: csipb.VolumeUsage_BYTES, Total: total, Available: free, Used: total - free},
		{Unit: csipb.VolumeUsage_INODES, Total: int64(s.Files), Available: int64(s.Ffree), Used: int64(s.Files - s.Ffree)},
	}
	return out, nil
}
