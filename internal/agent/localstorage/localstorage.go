// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package localstorage is the CSI driver storage.mortise.dev: volumes that are directories of the node. A real node runs it, and registers
// it with itself as any other driver registers: by a socket in plugins_registry.
//
//	localstorage.go  Driver: its sockets, registration, identity
//	volumes.go       the directories of volumes and snapshots
//	copy.go          copies of directories: by reflink where the file system can
//	controller.go    the CSI controller service, for provisioners beside the driver
//	snapshots.go     snapshots in it
//	node.go          the CSI node service
//	claims.go        deletes what the cluster's provisioner says, in annotations of the Node
//
// A volume is DIR/volumes/ID: the file volume.json, and the directory data, which is bound into pods. A snapshot is DIR/snapshots/ID. Each
// is made under another name and renamed, so that a driver that is killed leaves nothing half done under its name.
//
// The driver does not enforce the size of volumes: all share the file system of DIR.
package localstorage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/mortise-dev/mortise/internal/agent/plugins"
	"github.com/mortise-dev/mortise/internal/version"
)

// The names of the driver. The provisioner of the cluster has the same.
const (
	Name        = "storage.mortise.dev"
	TopologyKey = "topology.storage.mortise.dev/node"
	// Lazy is the attribute of a volume that is made when it is first published, on the node.
	Lazy = "storage.mortise.dev/lazy"
	// Size is the attribute with the size of such a volume, in bytes.
	Size = "storage.mortise.dev/size"
)

// Mounter mounts directories.
type Mounter interface {
	Bind(source, target string) error
	Unmount(dir string) error
	IsMountPoint(dir string) (bool, error)
}

// Options configure a Driver. All fields are required.
type Options struct {
	Dir      string // of the volumes
	Root     string // of the node, with plugins and plugins_registry
	NodeName string
	Mounter  Mounter
	Logger   *slog.Logger
}

// Driver is the driver of one node. It is safe for concurrent use.
type Driver struct{ *store }

// New makes a driver.
func New(o Options) *Driver { return &Driver{&store{Options: o}} }

// Run serves the driver until ctx ends. What is mounted stays.
func (d *Driver) Run(ctx context.Context) error {
	if err := d.prepare(); err != nil {
		return err
	}
	socket := filepath.Join(d.Root, "plugins", Name, "csi.sock")
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		return fmt.Errorf("make directory of the driver's socket: %w", err)
	}
	return d.serve(ctx,
		endpoint{socket, d.Register},
		endpoint{filepath.Join(d.Root, "plugins_registry", Name+"-reg.sock"), func(s *grpc.Server) {
			registration.RegisterRegistrationServer(s, &registrar{endpoint: socket, log: d.Logger})
		}},
	)
}

// Register registers the services of the driver.
func (d *Driver) Register(s *grpc.Server) {
	csipb.RegisterIdentityServer(s, identityServer{})
	csipb.RegisterControllerServer(s, &controllerServer{store: d.store})
	csipb.RegisterNodeServer(s, &nodeServer{store: d.store})
}

// endpoint is a socket, and what it serves.
type endpoint struct {
	path     string
	register func(*grpc.Server)
}

// serve serves at sockets, the first one first.
func (d *Driver) serve(ctx context.Context, all ...endpoint) error {
	var running sync.WaitGroup
	var servers []*grpc.Server
	failed := make(chan error, len(all))
	var first error
	for _, e := range all {
		// A socket of an earlier process; one that is served now belongs to a second node of the directory, which there is not.
		if err := os.Remove(e.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			first = fmt.Errorf("remove old socket: %w", err)
			break
		}
		if err := os.MkdirAll(filepath.Dir(e.path), 0o750); err != nil {
			first = fmt.Errorf("make directory of socket: %w", err)
			break
		}
		l, err := plugins.Listen(ctx, e.path)
		if err != nil {
			first = fmt.Errorf("listen at %s: %w", e.path, err)
			break
		}
		s := grpc.NewServer()
		e.register(s)
		servers = append(servers, s)
		running.Go(func() { failed <- s.Serve(l) })
	}
	if first == nil {
		select {
		case <-ctx.Done():
		case first = <-failed:
		}
	}
	for _, s := range servers {
		s.Stop()
	}
	running.Wait()
	return first
}

// registrar tells the node of the driver.
type registrar struct {
	registration.UnimplementedRegistrationServer
	endpoint string
	log      *slog.Logger
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: "CSIPlugin", Name: Name, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}

func (r *registrar) NotifyRegistrationStatus(
	_ context.Context, status *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	if !status.PluginRegistered {
		r.log.Info("The driver of local storage is not registered yet", "driver", Name, "err", status.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// identityServer is the identity service.
type identityServer struct {
	csipb.UnimplementedIdentityServer
}

// GetPluginInfo implements the identity service.
func (identityServer) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: Name, VendorVersion: version.Get().GitVersion}, nil
}

// GetPluginCapabilities implements the identity service.
func (identityServer) GetPluginCapabilities(
	context.Context, *csipb.GetPluginCapabilitiesRequest,
) (*csipb.GetPluginCapabilitiesResponse, error) {
	out := &csipb.GetPluginCapabilitiesResponse{}
	for _, t := range []csipb.PluginCapability_Service_Type{
		csipb.PluginCapability_Service_CONTROLLER_SERVICE, csipb.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS,
	} {
		out.Capabilities = append(out.Capabilities, &csipb.PluginCapability{
			Type: &csipb.PluginCapability_Service_{Service: &csipb.PluginCapability_Service{Type: t}},
		})
	}
	out.Capabilities = append(out.Capabilities, &csipb.PluginCapability{Type: &csipb.PluginCapability_VolumeExpansion_{
		VolumeExpansion: &csipb.PluginCapability_VolumeExpansion{Type: csipb.PluginCapability_VolumeExpansion_ONLINE},
	}})
	return out, nil
}

// Probe implements the identity service.
func (identityServer) Probe(context.Context, *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	return &csipb.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}
