// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// paths are two names of the node's directory. Drivers that run in pods mount kubelet's usual directories under their own names, and know
// no others: a path below the root directory is nothing in such a pod, where the driver would make a directory, and mount the volume where
// no other pod sees it. A driver says which names it knows by the path of its socket, with which it registers.
type paths struct {
	root  string // the node's directory
	usual string // where links lead to it; empty: nowhere
}

// translate returns an interceptor that gives a driver the paths that it knows.
func (p paths) translate(endpoint string) grpc.UnaryClientInterceptor {
	known := p.usual != "" && p.usual != p.root && strings.HasPrefix(endpoint, p.usual+"/")
	return func(ctx context.Context, method string, in, out any, conn *grpc.ClientConn, call grpc.UnaryInvoker, o ...grpc.CallOption) error {
		if known {
			in = p.request(in)
		}
		return call(ctx, method, in, out, conn, o...)
	}
}

// request returns a request with usual paths. The caller keeps its own.
func (p paths) request(in any) any {
	switch q := in.(type) {
	case *csipb.NodeStageVolumeRequest:
		q = proto.CloneOf(q)
		q.StagingTargetPath = p.path(q.StagingTargetPath)
		return q
	case *csipb.NodeUnstageVolumeRequest:
		q = proto.CloneOf(q)
		q.StagingTargetPath = p.path(q.StagingTargetPath)
		return q
	case *csipb.NodePublishVolumeRequest:
		q = proto.CloneOf(q)
		q.StagingTargetPath, q.TargetPath = p.path(q.StagingTargetPath), p.path(q.TargetPath)
		return q
	case *csipb.NodeUnpublishVolumeRequest:
		q = proto.CloneOf(q)
		q.TargetPath = p.path(q.TargetPath)
		return q
	case *csipb.NodeExpandVolumeRequest:
		q = proto.CloneOf(q)
		q.StagingTargetPath, q.VolumePath = p.path(q.StagingTargetPath), p.path(q.VolumePath)
		return q
	case *csipb.NodeGetVolumeStatsRequest:
		q = proto.CloneOf(q)
		q.StagingTargetPath, q.VolumePath = p.path(q.StagingTargetPath), p.path(q.VolumePath)
		return q
	case *csipb.NodeGetVolumeHealthRequest:
		q = proto.CloneOf(q)
		q.StagingTargetPath, q.VolumePublishPath = p.path(q.StagingTargetPath), p.path(q.VolumePublishPath)
		return q
	}
	return in
}

// path returns the usual name of a path.
func (p paths) path(path string) string {
	if rest, ok := strings.CutPrefix(path, p.root+"/"); ok {
		return p.usual + "/" + rest
	}
	return path
}
