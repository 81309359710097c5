// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
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

// pathFields are the fields of the node service's requests that are paths of the node.
var pathFields = []protoreflect.Name{"target_path", "staging_target_path", "volume_path", "volume_publish_path"}

// request returns a request with usual paths. The caller keeps its own.
func (p paths) request(in any) any {
	q, ok := in.(proto.Message)
	if !ok {
		return in
	}
	fields := q.ProtoReflect().Descriptor().Fields()
	cloned := false
	for _, name := range pathFields {
		f := fields.ByName(name)
		if f == nil {
			continue
		}
		if !cloned {
			q, cloned = proto.Clone(q), true
		}
		m := q.ProtoReflect()
		m.Set(f, protoreflect.ValueOfString(p.path(m.Get(f).String())))
	}
	return q
}

// path returns the usual name of a path.
func (p paths) path(path string) string {
	if rest, ok := strings.CutPrefix(path, p.root+"/"); ok {
		return p.usual + "/" + rest
	}
	return path
}
