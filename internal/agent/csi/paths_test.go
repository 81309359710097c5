// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A driver that registers with kubelet's usual path gets usual paths; another one gets those of the node. No request of the node service
// with a path of the node is left out.
func TestPaths(t *testing.T) {
	p := paths{root: "/data/kubelet", usual: "/var/lib/kubelet"}
	sent := func(p paths, endpoint string, in proto.Message) (out proto.Message) {
		call := func(_ context.Context, _ string, in, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
			out = in.(proto.Message)
			return nil
		}
		if err := p.translate(endpoint)(t.Context(), "", in, nil, nil, call); err != nil {
			t.Fatal(err)
		}
		return out
	}
	names := []protoreflect.Name{"target_path", "staging_target_path", "volume_path", "volume_publish_path"}
	service := csipb.File_csi_proto.Services().ByName("Node")
	seen := 0
	for i := range service.Methods().Len() {
		input := service.Methods().Get(i).Input()
		found := false
		for _, name := range names {
			found = found || input.Fields().ByName(name) != nil
		}
		if !found {
			continue
		}
		seen++
		q := requests[input.Name()]
		if q == nil {
			t.Errorf("%s has a path, and is not known", input.Name())
			continue
		}
		for _, name := range names {
			f := input.Fields().ByName(name)
			if f == nil {
				continue
			}
			in := q.ProtoReflect().New()
			in.Set(f, protoreflect.ValueOfString("/data/kubelet/pods/u/mount"))
			for endpoint, want := range map[string]string{
				"/var/lib/kubelet/plugins/d/csi.sock": "/var/lib/kubelet/pods/u/mount",
				"/data/kubelet/plugins/d/csi.sock":    "/data/kubelet/pods/u/mount",
			} {
				if got := sent(p, endpoint, in.Interface()).ProtoReflect().Get(f).String(); got != want {
					t.Errorf("%s of %s for a driver at %s is %s, want %s", name, input.Name(), endpoint, got, want)
				}
			}
			if got := in.Get(f).String(); got != "/data/kubelet/pods/u/mount" {
				t.Errorf("the caller's request has %s", got)
			}
		}
	}
	if seen != len(requests) {
		t.Errorf("%d requests have paths, want %d", seen, len(requests))
	}
	in := &csipb.NodeUnpublishVolumeRequest{TargetPath: "/data/kubelet2/x"}
	if got := sent(p, "/var/lib/kubelet/plugins/d/csi.sock", in).(*csipb.NodeUnpublishVolumeRequest); got.TargetPath != in.TargetPath {
		t.Errorf("a path elsewhere is %s", got.TargetPath)
	}
	if got := sent(paths{root: "/data/kubelet"}, "/var/lib/kubelet/plugins/d/csi.sock", in); got != proto.Message(in) {
		t.Error("without links, a request is another")
	}
}

// requests are those with paths of the node.
var requests = map[protoreflect.Name]proto.Message{
	"NodeStageVolumeRequest": &csipb.NodeStageVolumeRequest{}, "NodeUnstageVolumeRequest": &csipb.NodeUnstageVolumeRequest{},
	"NodePublishVolumeRequest": &csipb.NodePublishVolumeRequest{}, "NodeUnpublishVolumeRequest": &csipb.NodeUnpublishVolumeRequest{},
	"NodeExpandVolumeRequest": &csipb.NodeExpandVolumeRequest{}, "NodeGetVolumeStatsRequest": &csipb.NodeGetVolumeStatsRequest{},
	"NodeGetVolumeHealthRequest": &csipb.NodeGetVolumeHealthRequest{},
}
