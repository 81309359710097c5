// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package pluginbench

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// devicePlugin is a device plug-in that watches for kubelet's socket, as plug-ins should.
type devicePlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	devices   []*pluginapi.Device
	answer    func(ids []string) (*pluginapi.AllocateResponse, error)
	preferred func(q *pluginapi.ContainerPreferredAllocationRequest) []string // nil: it has no GetPreferredAllocation
	sick      chan struct{}                                                   // closed: the first device is unhealthy
	once      bool                                                            // it registers only once
}

func newDevicePlugin(ids ...string) *devicePlugin {
	p := &devicePlugin{sick: make(chan struct{})}
	for _, id := range ids {
		p.devices = append(p.devices, &pluginapi.Device{ID: id, Health: pluginapi.Healthy})
	}
	return p
}

func (p *devicePlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: p.preferred != nil}, nil
}

func (p *devicePlugin) ListAndWatch(_ *pluginapi.Empty, s grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	if err := s.Send(&pluginapi.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	select {
	case <-s.Context().Done():
		return nil
	case <-p.sick:
	}
	first := &pluginapi.Device{ID: p.devices[0].GetID(), Health: pluginapi.Unhealthy}
	err := s.Send(&pluginapi.ListAndWatchResponse{Devices: append([]*pluginapi.Device{first}, p.devices[1:]...)})
	<-s.Context().Done()
	return err
}

func (p *devicePlugin) Allocate(_ context.Context, q *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	ids := q.GetContainerRequests()[0].GetDevicesIds()
	if slices.Contains(ids, noSuchDevice) {
		return nil, errors.New("no such device")
	}
	return p.answer(ids)
}

func (p *devicePlugin) GetPreferredAllocation(
	_ context.Context, q *pluginapi.PreferredAllocationRequest,
) (*pluginapi.PreferredAllocationResponse, error) {
	return &pluginapi.PreferredAllocationResponse{ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{
		{DeviceIDs: p.preferred(q.GetContainerRequests()[0])},
	}}, nil
}

// given is an answer of Allocate for one container.
func given(one *pluginapi.ContainerAllocateResponse) func([]string) (*pluginapi.AllocateResponse, error) {
	return func([]string) (*pluginapi.AllocateResponse, error) {
		return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{one}}, nil
	}
}

// run runs the plug-in until the test ends: it registers at each new kubelet.sock, until that succeeds.
func (p *devicePlugin) run(t *testing.T, root string) {
	t.Helper()
	dir := filepath.Join(root, "device-plugins")
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(dir, 0o755), watcher.Add(dir)); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		stop := func() {}
		defer func() { stop() }()
		for e := range watcher.Events {
			if filepath.Base(e.Name) != "kubelet.sock" || !e.Has(fsnotify.Create) {
				continue
			}
			stop()
			stop = p.serve(t, filepath.Join(dir, "plugin.sock"))
			p.register(e.Name)
			if p.once {
				watcher.Remove(dir)
			}
		}
	}()
	t.Cleanup(func() {
		watcher.Close()
		<-done
	})
}

// atOnce registers at a kubelet.sock that is there already.
func (p *devicePlugin) atOnce(t *testing.T, root string) {
	dir := filepath.Join(root, "device-plugins")
	if _, err := os.Stat(filepath.Join(dir, "kubelet.sock")); err == nil {
		p.serve(t, filepath.Join(dir, "plugin.sock"))
		p.register(filepath.Join(dir, "kubelet.sock"))
	}
}

func (p *devicePlugin) serve(t *testing.T, socket string) (stop func()) {
	return serve(t, socket, func(s *grpc.Server) { pluginapi.RegisterDevicePluginServer(s, p) })
}

// register registers the plug-in; kubelet may refuse it.
func (p *devicePlugin) register(kubelet string) {
	c, err := grpc.NewClient("unix:"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return
	}
	defer c.Close()
	// The socket's file is there before kubelet listens.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, _ = pluginapi.NewRegistrationClient(c).Register(ctx, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: "plugin.sock", ResourceName: "example.com/dev",
	}, grpc.WaitForReady(true))
}

// serve serves at a socket until stop is called.
func serve(t *testing.T, socket string, register func(*grpc.Server)) (stop func()) {
	_ = os.Remove(socket) // of a former server
	var config net.ListenConfig
	l, err := config.Listen(context.Background(), "unix", socket)
	if err != nil {
		t.Error(err)
		return func() {}
	}
	s := grpc.NewServer()
	register(s)
	var running sync.WaitGroup
	running.Go(func() { _ = s.Serve(l) })
	return func() {
		s.Stop()
		running.Wait()
	}
}

// csiDriver is a CSI driver whose volumes are directories.
type csiDriver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer
	endpoint, nodeID string
	leave            bool // NodeUnpublishVolume does nothing
}

func (d *csiDriver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: csiType, Name: "dir.example.com", Endpoint: d.endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}

func (d *csiDriver) NotifyRegistrationStatus(
	context.Context, *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	return &registration.RegistrationStatusResponse{}, nil
}

func (d *csiDriver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "dir.example.com", VendorVersion: "1"}, nil
}

func (d *csiDriver) GetPluginCapabilities(
	context.Context, *csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

func (d *csiDriver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (d *csiDriver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.nodeID}, nil
}

func (d *csiDriver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{{Type: &csi.NodeServiceCapability_Rpc{
		Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
	}}}}, nil
}

func (d *csiDriver) NodeStageVolume(context.Context, *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return &csi.NodeStageVolumeResponse{}, nil
}

func (d *csiDriver) NodeUnstageVolume(context.Context, *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, nil
}

func (d *csiDriver) NodePublishVolume(_ context.Context, q *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if q.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "no volume ID")
	}
	return &csi.NodePublishVolumeResponse{}, os.MkdirAll(q.GetTargetPath(), 0o755)
}

func (d *csiDriver) NodeUnpublishVolume(_ context.Context, q *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if d.leave {
		return &csi.NodeUnpublishVolumeResponse{}, nil
	}
	return &csi.NodeUnpublishVolumeResponse{}, os.RemoveAll(q.GetTargetPath())
}

// run serves the driver and its registration until the test ends.
func (d *csiDriver) run(t *testing.T, root string) {
	t.Helper()
	d.endpoint = filepath.Join(root, "csi.sock")
	if err := os.MkdirAll(filepath.Join(root, "plugins_registry"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(serve(t, d.endpoint, func(s *grpc.Server) {
		csi.RegisterIdentityServer(s, d)
		csi.RegisterNodeServer(s, d)
	}))
	t.Cleanup(serve(t, filepath.Join(root, "plugins_registry", "dir.sock"), func(s *grpc.Server) {
		registration.RegisterRegistrationServer(s, d)
	}))
}
