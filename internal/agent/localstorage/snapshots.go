// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package localstorage

import (
	"context"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// snapshot returns a snapshot as the specification has it.
func snapshot(r *record) *csipb.Snapshot {
	return &csipb.Snapshot{
		SnapshotId: r.ID, SourceVolumeId: r.Source, SizeBytes: r.Size, CreationTime: timestamppb.New(r.Made), ReadyToUse: true,
	}
}

// CreateSnapshot implements the controller service. Pods may write to the volume meanwhile: then the snapshot has some of what they write.
func (d *controllerServer) CreateSnapshot(_ context.Context, q *csipb.CreateSnapshotRequest) (*csipb.CreateSnapshotResponse, error) {
	if q.GetName() == "" || q.GetSourceVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "a snapshot needs a name and a volume")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	id := idOf(q.Name)
	have, err := d.find(snapshotsDir, id)
	if err != nil {
		return nil, err
	}
	if have != nil {
		if have.Source != q.SourceVolumeId {
			return nil, status.Errorf(codes.AlreadyExists, "snapshot %s is of another volume", q.Name)
		}
		return &csipb.CreateSnapshotResponse{Snapshot: snapshot(have)}, nil
	}
	source, err := d.existing(volumesDir, q.SourceVolumeId)
	if err != nil {
		return nil, err
	}
	r := &record{ID: id, Name: q.Name, Size: source.Size, Source: source.ID, Made: time.Now()}
	if err := d.make(snapshotsDir, r, d.dataOf(volumesDir, source.ID)); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csipb.CreateSnapshotResponse{Snapshot: snapshot(r)}, nil
}

// DeleteSnapshot implements the controller service.
func (d *controllerServer) DeleteSnapshot(_ context.Context, q *csipb.DeleteSnapshotRequest) (*csipb.DeleteSnapshotResponse, error) {
	if q.GetSnapshotId() == "" {
		return nil, errNoID
	}
	if err := d.remove(snapshotsDir, q.SnapshotId); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csipb.DeleteSnapshotResponse{}, nil
}

// ListSnapshots implements the controller service.
func (d *controllerServer) ListSnapshots(_ context.Context, q *csipb.ListSnapshotsRequest) (*csipb.ListSnapshotsResponse, error) {
	all, err := d.list(snapshotsDir)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(r *record) bool {
		return q.GetSnapshotId() != "" && r.ID != q.SnapshotId || q.GetSourceVolumeId() != "" && r.Source != q.SourceVolumeId
	})
	page, next, err := pageOf(all, q.GetStartingToken(), q.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	out := &csipb.ListSnapshotsResponse{NextToken: next}
	for _, r := range page {
		out.Entries = append(out.Entries, &csipb.ListSnapshotsResponse_Entry{Snapshot: snapshot(r)})
	}
	return out, nil
}
