// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"strconv"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// shown is a snapshot as CSI describes it.
func (s *snapshot) shown() *csipb.Snapshot {
	return &csipb.Snapshot{SnapshotId: s.ID, SourceVolumeId: s.Source, SizeBytes: s.Size, CreationTime: s.Made, ReadyToUse: true,
		GroupSnapshotId: s.Group}
}

// take copies a volume into a snapshot.
func (d *driver) take(v *volume, name, group string) (*snapshot, error) {
	s := &snapshot{ID: uuid.NewString(), Name: name, Source: v.ID, Group: group, Size: v.Size, Block: v.Block, Made: timestamppb.Now()}
	if err := makeVolume(d.path(s.ID), d.path(v.ID), v.Size, v.Block); err != nil {
		return nil, internal(err)
	}
	d.Snapshots[s.ID] = s
	return s, nil
}

// CreateSnapshot implements the controller service.
func (c controller) CreateSnapshot(_ context.Context, q *csipb.CreateSnapshotRequest) (*csipb.CreateSnapshotResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.Snapshots {
		if s.Name == q.GetName() {
			if s.Source != q.GetSourceVolumeId() {
				return nil, status.Errorf(codes.AlreadyExists, "snapshot %s exists, of another volume", s.Name)
			}
			return &csipb.CreateSnapshotResponse{Snapshot: s.shown()}, nil
		}
	}
	v, err := c.have(q.GetSourceVolumeId())
	if err != nil {
		return nil, err
	}
	s, err := c.take(v, q.GetName(), "")
	if err != nil {
		return nil, err
	}
	return &csipb.CreateSnapshotResponse{Snapshot: s.shown()}, c.save()
}

// DeleteSnapshot implements the controller service.
func (c controller) DeleteSnapshot(_ context.Context, q *csipb.DeleteSnapshotRequest) (*csipb.DeleteSnapshotResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.Snapshots[q.GetSnapshotId()]
	if s == nil {
		return &csipb.DeleteSnapshotResponse{}, nil
	}
	if s.Group != "" {
		return nil, status.Errorf(codes.InvalidArgument, "snapshot %s belongs to a group", s.ID)
	}
	return &csipb.DeleteSnapshotResponse{}, c.dropSnapshot(s)
}

func (d *driver) dropSnapshot(s *snapshot) error {
	if err := remove(d.path(s.ID)); err != nil {
		return internal(err)
	}
	delete(d.Snapshots, s.ID)
	return d.save()
}

// ListSnapshots implements the controller service.
func (c controller) ListSnapshots(_ context.Context, q *csipb.ListSnapshotsRequest) (*csipb.ListSnapshotsResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := &csipb.ListSnapshotsResponse{}
	start, _ := strconv.Atoi(q.GetStartingToken()) // a token of another driver is a new list
	for _, s := range sorted(c.Snapshots) {
		if (q.GetSnapshotId() == "" || q.GetSnapshotId() == s.ID) && (q.GetSourceVolumeId() == "" || q.GetSourceVolumeId() == s.Source) {
			out.Entries = append(out.Entries, &csipb.ListSnapshotsResponse_Entry{Snapshot: s.shown()})
		}
	}
	out.Entries = out.Entries[min(start, len(out.Entries)):]
	if most := int(q.GetMaxEntries()); most > 0 && most < len(out.Entries) {
		out.Entries, out.NextToken = out.Entries[:most], strconv.Itoa(start+most)
	}
	return out, nil
}

// groups is the group controller service.
type groups struct {
	csipb.UnimplementedGroupControllerServer
	*driver
}

// GroupControllerGetCapabilities implements the group controller service.
func (groups) GroupControllerGetCapabilities(
	context.Context, *csipb.GroupControllerGetCapabilitiesRequest,
) (*csipb.GroupControllerGetCapabilitiesResponse, error) {
	return &csipb.GroupControllerGetCapabilitiesResponse{Capabilities: []*csipb.GroupControllerServiceCapability{{
		Type: &csipb.GroupControllerServiceCapability_Rpc{Rpc: &csipb.GroupControllerServiceCapability_RPC{
			Type: csipb.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT}}}}}, nil
}

// shown is a group as CSI describes it.
func (g *group) shown(d *driver) *csipb.VolumeGroupSnapshot {
	out := &csipb.VolumeGroupSnapshot{GroupSnapshotId: g.ID, CreationTime: g.Made, ReadyToUse: true}
	for _, id := range g.Snapshots {
		if s := d.Snapshots[id]; s != nil {
			out.Snapshots = append(out.Snapshots, s.shown())
		}
	}
	return out
}

// CreateVolumeGroupSnapshot implements the group controller service.
func (s groups) CreateVolumeGroupSnapshot(
	_ context.Context, q *csipb.CreateVolumeGroupSnapshotRequest,
) (*csipb.CreateVolumeGroupSnapshotResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sources := slices.Sorted(slices.Values(q.GetSourceVolumeIds()))
	for _, g := range s.Groups {
		if g.Name == q.GetName() {
			if !slices.Equal(g.Sources, sources) {
				return nil, status.Errorf(codes.AlreadyExists, "group %s exists, of other volumes", g.Name)
			}
			return &csipb.CreateVolumeGroupSnapshotResponse{GroupSnapshot: g.shown(s.driver)}, nil
		}
	}
	g := &group{ID: uuid.NewString(), Name: q.GetName(), Sources: sources, Made: timestamppb.Now()}
	for _, id := range sources {
		v, err := s.have(id)
		if err != nil {
			return nil, err
		}
		taken, err := s.take(v, g.Name+"-"+id, g.ID)
		if err != nil {
			return nil, err
		}
		g.Snapshots = append(g.Snapshots, taken.ID)
	}
	s.Groups[g.ID] = g
	return &csipb.CreateVolumeGroupSnapshotResponse{GroupSnapshot: g.shown(s.driver)}, s.save()
}

// GetVolumeGroupSnapshot implements the group controller service.
func (s groups) GetVolumeGroupSnapshot(
	_ context.Context, q *csipb.GetVolumeGroupSnapshotRequest,
) (*csipb.GetVolumeGroupSnapshotResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.Groups[q.GetGroupSnapshotId()]
	if g == nil {
		return nil, status.Errorf(codes.NotFound, "there is no group %s", q.GetGroupSnapshotId())
	}
	return &csipb.GetVolumeGroupSnapshotResponse{GroupSnapshot: g.shown(s.driver)}, nil
}

// DeleteVolumeGroupSnapshot implements the group controller service.
func (s groups) DeleteVolumeGroupSnapshot(
	_ context.Context, q *csipb.DeleteVolumeGroupSnapshotRequest,
) (*csipb.DeleteVolumeGroupSnapshotResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.Groups[q.GetGroupSnapshotId()]
	if g == nil {
		return &csipb.DeleteVolumeGroupSnapshotResponse{}, nil
	}
	for _, id := range g.Snapshots {
		if taken := s.Snapshots[id]; taken != nil {
			if err := s.dropSnapshot(taken); err != nil {
				return nil, err
			}
		}
	}
	delete(s.Groups, g.ID)
	return &csipb.DeleteVolumeGroupSnapshotResponse{}, s.save()
}
