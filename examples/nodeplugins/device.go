// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// devices is a device plug-in: two devices example.com/gadget, which are nothing but a name in a container's environment.
type devices struct {
	deviceplugin.UnimplementedDevicePluginServer
}

// runDevices serves the plug-in, and registers it whenever the node makes its socket.
func runDevices(ctx context.Context, dir string) error {
	dir = filepath.Join(dir, "device-plugins")
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watcher.Close()
	if err := watcher.Add(dir); err != nil {
		return err
	}
	for ctx.Err() == nil {
		// The node removes the sockets in the directory when it starts: serve on a new one each time.
		serving, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() {
			ended <- serve(serving, filepath.Join(dir, "gadget.sock"), func(s *grpc.Server) {
				deviceplugin.RegisterDevicePluginServer(s, devices{})
			})
		}()
		if err := register(ctx, dir); err != nil {
			slog.Warn("Could not register, waiting for the node's next socket", "error", err)
		}
		err := awaitNode(ctx, watcher)
		stop()
		<-ended
		if err != nil {
			return err
		}
	}
	return nil
}

// awaitNode returns when the node has made its socket anew.
func awaitNode(ctx context.Context, watcher *fsnotify.Watcher) error {
	for {
		select {
		case e := <-watcher.Events:
			if filepath.Base(e.Name) == "kubelet.sock" && e.Has(fsnotify.Create) {
				return nil
			}
		case err := <-watcher.Errors:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

func register(ctx context.Context, dir string) error {
	c, err := grpc.NewClient("unix://"+filepath.Join(dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	// The socket's file is there a moment before the node listens on it: the call waits for that.
	_, err = deviceplugin.NewRegistrationClient(c).Register(ctx, &deviceplugin.RegisterRequest{
		Version: deviceplugin.Version, Endpoint: "gadget.sock", ResourceName: "example.com/gadget"},
		grpc.WaitForReady(true))
	return err
}

// GetDevicePluginOptions names the calls that the plug-in wants beside Allocate: none.
func (devices) GetDevicePluginOptions(context.Context, *deviceplugin.Empty) (*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{}, nil
}

// ListAndWatch reports the devices. A plug-in sends the list again when it changes; these never do.
func (devices) ListAndWatch(_ *deviceplugin.Empty, s grpc.ServerStreamingServer[deviceplugin.ListAndWatchResponse]) error {
	err := s.Send(&deviceplugin.ListAndWatchResponse{Devices: []*deviceplugin.Device{
		{ID: "gadget-0", Health: deviceplugin.Healthy}, {ID: "gadget-1", Health: deviceplugin.Healthy}}})
	if err == nil {
		<-s.Context().Done()
	}
	return err
}

// Allocate returns what a container with the devices gets. An error fails the pod.
func (devices) Allocate(_ context.Context, r *deviceplugin.AllocateRequest) (*deviceplugin.AllocateResponse, error) {
	answer := &deviceplugin.AllocateResponse{}
	for _, c := range r.ContainerRequests {
		for _, id := range c.DevicesIds {
			if id != "gadget-0" && id != "gadget-1" {
				return nil, fmt.Errorf("there is no device %s", id)
			}
		}
		answer.ContainerResponses = append(answer.ContainerResponses, &deviceplugin.ContainerAllocateResponse{
			Envs: map[string]string{"GADGETS": strings.Join(c.DevicesIds, ",")}})
	}
	return answer, nil
}
