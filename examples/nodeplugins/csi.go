// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const csiDriver = "folders.csi.example.com"

// volumes is the node part of a CSI driver: a volume is a directory of the node, which is bound to where the pod has it.
type volumes struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	dir string // of the volumes
}

// runVolumes serves the driver and its registration.
func runVolumes(ctx context.Context, dir string) error {
	socket := filepath.Join(dir, "plugins", csiDriver, "csi.sock")
	v := &volumes{dir: filepath.Join(dir, "plugins", csiDriver, "volumes")}
	ended := make(chan error, 2)
	go func() {
		ended <- serve(ctx, socket, func(s *grpc.Server) {
			csi.RegisterIdentityServer(s, v)
			csi.RegisterNodeServer(s, v)
		})
	}()
	go func() { // the node-driver-registrar does this for drivers that do not
		ended <- serve(ctx, filepath.Join(dir, "plugins_registry", csiDriver+"-reg.sock"), func(s *grpc.Server) {
			registration.RegisterRegistrationServer(s, registrar{info: &registration.PluginInfo{
				Type: registration.CSIPlugin, Name: csiDriver, Endpoint: socket, SupportedVersions: []string{"1.0.0"}}})
		})
	}()
	return <-ended
}

// GetPluginInfo returns the driver's name, which PersistentVolumes and StorageClasses use.
func (v *volumes) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: csiDriver, VendorVersion: "1"}, nil
}

// GetPluginCapabilities returns none: there is no controller part.
func (v *volumes) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

// Probe says that the driver is ready.
func (v *volumes) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// NodeGetInfo returns what the driver calls this node.
func (v *volumes) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	name, err := os.Hostname()
	return &csi.NodeGetInfoResponse{NodeId: name}, err
}

// NodeGetCapabilities returns none: volumes are not staged.
func (v *volumes) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

// NodePublishVolume binds the volume's directory to the target, whose parent is there. It may be called again.
func (v *volumes) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if r.VolumeId == "" || r.TargetPath == "" || r.VolumeCapability == nil {
		return nil, status.Error(codes.InvalidArgument, "volume_id, target_path and volume_capability are required")
	}
	folder := filepath.Join(v.dir, filepath.Base(r.VolumeId))
	if err := errors.Join(os.MkdirAll(folder, 0o777), os.MkdirAll(r.TargetPath, 0o777)); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if mounted(folder, r.TargetPath) {
		return &csi.NodePublishVolumeResponse{}, nil
	}
	if err := syscall.Mount(folder, r.TargetPath, "", syscall.MS_BIND, ""); err != nil {
		return nil, status.Errorf(codes.Internal, "bind %s: %v", folder, err)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// NodeUnpublishVolume undoes NodePublishVolume. A target that is gone is no error.
func (v *volumes) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if r.VolumeId == "" || r.TargetPath == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id and target_path are required")
	}
	if mounted(filepath.Join(v.dir, filepath.Base(r.VolumeId)), r.TargetPath) {
		if err := syscall.Unmount(r.TargetPath, 0); err != nil {
			return nil, status.Errorf(codes.Internal, "unmount %s: %v", r.TargetPath, err)
		}
	}
	if err := os.Remove(r.TargetPath); err != nil && !os.IsNotExist(err) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// mounted reports whether target shows folder.
func mounted(folder, target string) bool {
	a, err := os.Stat(folder)
	b, err2 := os.Stat(target)
	return err == nil && err2 == nil && os.SameFile(a, b)
}
