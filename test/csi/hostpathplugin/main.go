// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command hostpathplugin stands in for the CSI driver of that name, whose module cannot be fetched, in Kubernetes' own end-to-end tests.
//
// With --proxy-endpoint, it is no driver: it passes each connection to its socket on to a connection that a driver elsewhere has made. That
// is how the tests' mock driver, which runs in the suite's process, serves a node. Otherwise it is a driver whose volumes are directories
// and files below --statedir, and which refuses calls in an order that CSI does not allow.
//
//	main.go       flags, the server
//	proxy.go      the proxy
//	state.go      volumes, snapshots, and the file that has them
//	controller.go the controller service
//	snapshots.go  snapshots and groups of them
//	node.go       the node service
//	files.go      directories, files, loop devices and mounts
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// settings are the flags.
type settings struct {
	name, node, dir  string
	volumesPerNode   int64
	attach, topology bool
	expandOnNode     bool
	lifecycle        bool
	modify           bool
	mutable          string
}

func main() {
	var s settings
	flag.StringVar(&s.name, "drivername", "hostpath.csi.k8s.io", "the driver's name")
	flag.StringVar(&s.node, "nodeid", "", "the node's name")
	flag.StringVar(&s.dir, "statedir", "/csi-data-dir", "the directory of volumes")
	flag.Int64Var(&s.volumesPerNode, "maxvolumespernode", 0, "volumes of a node; 0: no limit")
	flag.Int64Var(&s.volumesPerNode, "attach-limit", 0, "the same")
	flag.BoolVar(&s.attach, "enable-attach", false, "volumes are attached")
	flag.BoolVar(&s.topology, "enable-topology", true, "volumes are accessible from their node only")
	flag.BoolVar(&s.expandOnNode, "node-expand-required", true, "volumes are expanded on the node, too")
	flag.BoolVar(&s.lifecycle, "check-volume-lifecycle", true, "accepted: calls in a wrong order are always refused")
	flag.BoolVar(&s.modify, "enable-controller-modify-volume", false, "volumes can be modified")
	flag.StringVar(&s.mutable, "accepted-mutable-parameter-names", "", "parameters that volumes can be given, separated by commas")
	flag.Bool("enable-snapshot-metadata", false, "accepted, without effect")
	flag.Int("v", 0, "accepted, without effect: all calls are logged")
	endpoint := flag.String("endpoint", "/csi/csi.sock", "the driver's socket")
	proxied := flag.String("proxy-endpoint", "", "where connections come from that --endpoint's are passed on to")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, s, *endpoint, *proxied); err != nil {
		slog.Error("The driver ends", "err", err)
		os.Exit(1)
	}
}

// listen listens at an address with or without a scheme.
func listen(ctx context.Context, endpoint string) (net.Listener, error) {
	if address, ok := strings.CutPrefix(endpoint, "tcp://"); ok {
		return new(net.ListenConfig).Listen(ctx, "tcp", address)
	}
	path := strings.TrimPrefix(endpoint, "unix://")
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return new(net.ListenConfig).Listen(ctx, "unix", path)
}

// run serves until ctx ends.
func run(ctx context.Context, s settings, endpoint, proxied string) error {
	l, err := listen(ctx, endpoint)
	if err != nil {
		return err
	}
	if proxied != "" {
		from, err := listen(ctx, proxied)
		if err != nil {
			return err
		}
		return pass(ctx, l, from)
	}
	d, err := open(s)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(logged))
	csipb.RegisterIdentityServer(server, identity{d: d})
	csipb.RegisterControllerServer(server, controller{driver: d})
	csipb.RegisterGroupControllerServer(server, groups{driver: d})
	csipb.RegisterNodeServer(server, node{driver: d})
	context.AfterFunc(ctx, server.Stop)
	return server.Serve(l)
}

// entry is a call in the log, as the suite reads it.
type entry struct {
	Method            string
	Request, Response any
	Error             string
	FullError         any
}

// logged writes each call as the suite reads it.
func logged(ctx context.Context, q any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	answer, err := next(ctx, q)
	if strings.HasSuffix(info.FullMethod, "/Probe") {
		return answer, err
	}
	e := entry{Method: info.FullMethod, Request: q, Response: answer}
	if err != nil {
		e.Error, e.FullError = err.Error(), status.Convert(err).Proto()
	}
	text, _ := json.Marshal(e) // what the log lacks then is no matter
	fmt.Printf("gRPCCall: %s\n", text)
	return answer, err
}

// identity is the identity service.
type identity struct {
	csipb.UnimplementedIdentityServer
	d *driver
}

// GetPluginInfo implements the identity service.
func (i identity) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: i.d.name, VendorVersion: "0"}, nil
}

// Probe implements the identity service.
func (identity) Probe(context.Context, *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	return &csipb.ProbeResponse{}, nil
}

// GetPluginCapabilities implements the identity service.
func (i identity) GetPluginCapabilities(
	context.Context, *csipb.GetPluginCapabilitiesRequest,
) (*csipb.GetPluginCapabilitiesResponse, error) {
	out := &csipb.GetPluginCapabilitiesResponse{}
	services := []csipb.PluginCapability_Service_Type{csipb.PluginCapability_Service_CONTROLLER_SERVICE,
		csipb.PluginCapability_Service_GROUP_CONTROLLER_SERVICE}
	if i.d.topology {
		services = append(services, csipb.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
	}
	for _, t := range services {
		out.Capabilities = append(out.Capabilities, &csipb.PluginCapability{
			Type: &csipb.PluginCapability_Service_{Service: &csipb.PluginCapability_Service{Type: t}}})
	}
	out.Capabilities = append(out.Capabilities, &csipb.PluginCapability{Type: &csipb.PluginCapability_VolumeExpansion_{
		VolumeExpansion: &csipb.PluginCapability_VolumeExpansion{Type: csipb.PluginCapability_VolumeExpansion_ONLINE}}})
	return out, nil
}
