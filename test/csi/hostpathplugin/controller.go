// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"maps"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// controller is the controller service.
type controller struct {
	csipb.UnimplementedControllerServer
	*driver
}

// ControllerGetCapabilities implements the controller service.
func (c controller) ControllerGetCapabilities(
	context.Context, *csipb.ControllerGetCapabilitiesRequest,
) (*csipb.ControllerGetCapabilitiesResponse, error) {
	types := []csipb.ControllerServiceCapability_RPC_Type{
		csipb.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csipb.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csipb.ControllerServiceCapability_RPC_LIST_SNAPSHOTS, csipb.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csipb.ControllerServiceCapability_RPC_EXPAND_VOLUME, csipb.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csipb.ControllerServiceCapability_RPC_GET_CAPACITY,
	}
	if c.attach {
		types = append(types, csipb.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
	}
	if c.modify {
		types = append(types, csipb.ControllerServiceCapability_RPC_MODIFY_VOLUME)
	}
	out := &csipb.ControllerGetCapabilitiesResponse{}
	for _, t := range types {
		out.Capabilities = append(out.Capabilities, &csipb.ControllerServiceCapability{
			Type: &csipb.ControllerServiceCapability_Rpc{Rpc: &csipb.ControllerServiceCapability_RPC{Type: t}}})
	}
	return out, nil
}

// CreateVolume implements the controller service.
func (c controller) CreateVolume(_ context.Context, q *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
	if q.GetName() == "" || len(q.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "no name or no capabilities")
	}
	size, err := sized(q.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	if err := c.accepts(q.GetMutableParameters()); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v := &volume{ID: uuid.NewString(), Name: q.Name, Size: size, Mutable: q.GetMutableParameters(),
		Block:    q.VolumeCapabilities[0].GetBlock() != nil,
		Snapshot: q.GetVolumeContentSource().GetSnapshot().GetSnapshotId(), Source: q.GetVolumeContentSource().GetVolume().GetVolumeId()}
	if old := c.named(q.Name); old != nil {
		if old.Size < size || old.Snapshot != v.Snapshot || old.Source != v.Source || old.Block != v.Block {
			return nil, status.Errorf(codes.AlreadyExists, "volume %s exists, and is another", q.Name)
		}
		v = old
	} else if err := c.fill(v); err != nil {
		return nil, err
	}
	c.Volumes[v.ID] = v
	return &csipb.CreateVolumeResponse{Volume: &csipb.Volume{VolumeId: v.ID, CapacityBytes: v.Size, VolumeContext: q.GetParameters(),
		ContentSource: q.GetVolumeContentSource(), AccessibleTopology: c.where()}}, c.save()
}

// fill makes a volume on the disk.
func (d *driver) fill(v *volume) error {
	var source string
	switch {
	case v.Snapshot != "":
		s := d.Snapshots[v.Snapshot]
		if s == nil {
			return status.Errorf(codes.NotFound, "there is no snapshot %s", v.Snapshot)
		}
		if s.Block != v.Block || s.Size > v.Size {
			return status.Error(codes.InvalidArgument, "the snapshot is larger, or of another mode")
		}
		source = d.path(s.ID)
	case v.Source != "":
		s := d.Volumes[v.Source]
		if s == nil {
			return status.Errorf(codes.NotFound, "there is no volume %s", v.Source)
		}
		if s.Block != v.Block || s.Size > v.Size {
			return status.Error(codes.InvalidArgument, "the volume is larger, or of another mode")
		}
		source = d.path(s.ID)
	}
	return internal(makeVolume(d.path(v.ID), source, v.Size, v.Block))
}

// DeleteVolume implements the controller service.
func (c controller) DeleteVolume(_ context.Context, q *csipb.DeleteVolumeRequest) (*csipb.DeleteVolumeResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.Volumes[q.GetVolumeId()]
	if v == nil {
		return &csipb.DeleteVolumeResponse{}, nil
	}
	if v.Attached != "" || v.Staged != "" || len(v.Published) > 0 {
		return nil, status.Errorf(codes.Internal, "volume %s is still attached to %q, staged at %q, published at %q", v.ID, v.Attached,
			v.Staged, v.Published)
	}
	return &csipb.DeleteVolumeResponse{}, c.drop(v)
}

// drop removes a volume.
func (d *driver) drop(v *volume) error {
	if err := remove(d.path(v.ID)); err != nil {
		return internal(err)
	}
	delete(d.Volumes, v.ID)
	return d.save()
}

// ControllerPublishVolume implements the controller service.
func (c controller) ControllerPublishVolume(
	_ context.Context, q *csipb.ControllerPublishVolumeRequest,
) (*csipb.ControllerPublishVolumeResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.have(q.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if v.Attached != "" && v.Attached != q.GetNodeId() {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is attached to %s", v.ID, v.Attached)
	}
	v.Attached = q.GetNodeId()
	return &csipb.ControllerPublishVolumeResponse{}, c.save()
}

// ControllerUnpublishVolume implements the controller service.
func (c controller) ControllerUnpublishVolume(
	_ context.Context, q *csipb.ControllerUnpublishVolumeRequest,
) (*csipb.ControllerUnpublishVolumeResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.Volumes[q.GetVolumeId()]
	if v == nil || q.GetNodeId() != "" && v.Attached != q.GetNodeId() {
		return &csipb.ControllerUnpublishVolumeResponse{}, nil
	}
	if v.Staged != "" || len(v.Published) > 0 {
		return nil, status.Errorf(codes.Internal, "volume %s is still staged at %q, published at %q", v.ID, v.Staged, v.Published)
	}
	v.Attached = ""
	return &csipb.ControllerUnpublishVolumeResponse{}, c.save()
}

// ValidateVolumeCapabilities implements the controller service.
func (c controller) ValidateVolumeCapabilities(
	_ context.Context, q *csipb.ValidateVolumeCapabilitiesRequest,
) (*csipb.ValidateVolumeCapabilitiesResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.have(q.GetVolumeId()); err != nil {
		return nil, err
	}
	return &csipb.ValidateVolumeCapabilitiesResponse{Confirmed: &csipb.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeCapabilities: q.GetVolumeCapabilities(), VolumeContext: q.GetVolumeContext(), Parameters: q.GetParameters()}}, nil
}

// GetCapacity implements the controller service.
func (c controller) GetCapacity(_ context.Context, q *csipb.GetCapacityRequest) (*csipb.GetCapacityResponse, error) {
	if node, ok := q.GetAccessibleTopology().GetSegments()[topologyKey]; ok && node != c.node {
		return &csipb.GetCapacityResponse{}, nil
	}
	return &csipb.GetCapacityResponse{AvailableCapacity: capacity}, nil
}

// ControllerExpandVolume implements the controller service.
func (c controller) ControllerExpandVolume(
	_ context.Context, q *csipb.ControllerExpandVolumeRequest,
) (*csipb.ControllerExpandVolumeResponse, error) {
	size, err := sized(q.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.have(q.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if size > v.Size {
		v.Size = size
		if v.Block {
			if err := grow(c.path(v.ID), size); err != nil {
				return nil, internal(err)
			}
		}
	}
	return &csipb.ControllerExpandVolumeResponse{CapacityBytes: v.Size, NodeExpansionRequired: c.expandOnNode}, c.save()
}

// ControllerModifyVolume implements the controller service.
func (c controller) ControllerModifyVolume(
	_ context.Context, q *csipb.ControllerModifyVolumeRequest,
) (*csipb.ControllerModifyVolumeResponse, error) {
	if err := c.accepts(q.GetMutableParameters()); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.have(q.GetVolumeId())
	if err != nil {
		return nil, err
	}
	v.Mutable = q.GetMutableParameters()
	return &csipb.ControllerModifyVolumeResponse{}, c.save()
}

// sorted returns the values of a map in the order of its keys.
func sorted[V any](m map[string]V) []V {
	var out []V
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[k])
	}
	return out
}
