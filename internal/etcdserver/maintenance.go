// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcdserver

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/etcd/snapshotfile"
)

// Version is the version of etcd whose protocol this is.
const Version = "3.6.0"

// blob is the size of a part of a snapshot.
const blob = 256 << 10

// maintenance is the service Maintenance.
type maintenance struct {
	pb.UnimplementedMaintenanceServer
	*backend
	scratch string
}

// Status implements [pb.MaintenanceServer].
func (s *maintenance) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	size := store.New(s.engine).Size()
	revision := s.engine.Revision()
	return &pb.StatusResponse{
		Header: s.header(revision), Version: Version, StorageVersion: Version, DbSize: max(size.Disk, size.Bytes), DbSizeInUse: size.Bytes,
		Leader: memberID, RaftIndex: uint64(revision), RaftAppliedIndex: uint64(revision), RaftTerm: term,
	}, nil
}

// Alarm implements [pb.MaintenanceServer]: there are none, as `etcdctl endpoint health` asks.
func (s *maintenance) Alarm(_ context.Context, r *pb.AlarmRequest) (*pb.AlarmResponse, error) {
	if r.Action != pb.AlarmRequest_GET {
		return nil, beyond("alarms")
	}
	return &pb.AlarmResponse{Header: s.header(s.engine.Revision())}, nil
}

// Snapshot implements [pb.MaintenanceServer]. The snapshot is of the newest revision, without the history before it.
func (s *maintenance) Snapshot(_ *pb.SnapshotRequest, stream grpc.ServerStreamingServer[pb.SnapshotResponse]) (err error) {
	defer func() { err = translate(err) }()
	ctx := stream.Context()
	page, err := s.engine.Range(ctx, store.Range{})
	if err != nil {
		return err
	}
	content := store.Content{Revision: page.Revision}
	for _, r := range page.Records {
		if strings.HasPrefix(r.Key, root) && r.Key != root+compactKey {
			content.Records = append(content.Records, r)
		}
	}
	f, err := os.CreateTemp(s.scratch, "mortise-snapshot-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	if err := snapshotfile.Write(ctx, f, s.scratch, "/registry", content); err != nil {
		return err
	}
	left, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	for left > 0 {
		part := make([]byte, min(left, blob))
		if _, err := io.ReadFull(f, part); err != nil {
			return err
		}
		left -= int64(len(part))
		if err := stream.Send(&pb.SnapshotResponse{
			Header: s.header(page.Revision), RemainingBytes: uint64(left), Blob: part, Version: Version,
		}); err != nil {
			return err
		}
	}
	return nil
}

// cluster is the service Cluster: of one member.
type cluster struct {
	pb.UnimplementedClusterServer
	*backend
	url string
}

// MemberList implements [pb.ClusterServer].
func (s *cluster) MemberList(context.Context, *pb.MemberListRequest) (*pb.MemberListResponse, error) {
	return &pb.MemberListResponse{
		Header: s.header(s.engine.Revision()), Members: []*pb.Member{{ID: memberID, Name: "mortise", ClientURLs: []string{s.url}}},
	}, nil
}
