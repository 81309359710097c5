// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command csi-node-driver-registrar stands in for the sidecar of that name, whose module cannot be fetched: it asks a CSI driver for its
// name, and registers it with the node by a socket in /registration.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func main() {
	driver := flag.String("csi-address", "/run/csi/socket", "the driver's socket, as seen from here")
	endpoint := flag.String("kubelet-registration-path", "", "the driver's socket, as the node sees it")
	dir := flag.String("plugin-registration-path", "/registration", "the node's directory of registrations")
	health := flag.String("http-endpoint", "", "the address of /healthz; empty: none")
	timeout := flag.Duration("timeout", time.Second, "the time for a call to the driver")
	flag.Int("v", 0, "accepted, without effect")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *driver, *timeout, registrar{endpoint: *endpoint, ended: make(chan error, 1)}, *dir, *health); err != nil {
		slog.Error("The registrar ends", "err", err)
		os.Exit(1)
	}
}

// run registers the driver until ctx ends.
func run(ctx context.Context, driver string, timeout time.Duration, r registrar, dir, health string) error {
	var err error
	if r.name, err = nameOf(ctx, driver, timeout); err != nil {
		return err
	}
	socket := filepath.Join(dir, r.name+"-reg.sock")
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", socket)
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	registration.RegisterRegistrationServer(s, r)
	go func() { r.ended <- s.Serve(l) }()
	defer s.Stop() // removes the socket
	if health != "" {
		mux := http.NewServeMux()
		mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
		go func() { r.ended <- http.ListenAndServe(health, mux) }() //nolint:gosec // a test's program
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-r.ended:
		return err
	}
}

// nameOf waits for the driver, and returns its name.
func nameOf(ctx context.Context, driver string, timeout time.Duration) (string, error) {
	c, err := grpc.NewClient("unix:"+driver, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer c.Close()
	for {
		call, cancel := context.WithTimeout(ctx, max(timeout, time.Second))
		info, err := csipb.NewIdentityClient(c).GetPluginInfo(call, &csipb.GetPluginInfoRequest{}, grpc.WaitForReady(true))
		cancel()
		if err == nil {
			return info.GetName(), nil
		}
		if ctx.Err() != nil {
			return "", err
		}
		slog.Warn("The driver has not said its name", "err", err)
	}
}

// registrar tells the node of the driver.
type registrar struct {
	registration.UnimplementedRegistrationServer
	name, endpoint string
	ended          chan error
}

// GetInfo implements the registration service.
func (r registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: r.name, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"},
	}, nil
}

// NotifyRegistrationStatus implements the registration service. A driver that the node refuses ends the program, which is started again.
func (r registrar) NotifyRegistrationStatus(
	_ context.Context, q *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	slog.Info("The node has answered", "registered", q.GetPluginRegistered(), "err", q.GetError())
	if !q.GetPluginRegistered() {
		r.ended <- fmt.Errorf("the node refused the driver: %s", q.GetError())
	}
	return &registration.RegistrationStatusResponse{}, nil
}
