// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command nodeplugins has one example of each plug-in that kubelet, or a node of Mortise, calls over gRPC, a file each: a device plug-in, a
// driver of dynamic resources, and the node part of a CSI driver. They use Kubernetes' own types and nothing of Mortise.
//
// Its arguments are the plug-in, "device", "dra" or "csi", and kubelet's root directory, /var/lib/kubelet.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func main() {
	run := map[string]func(ctx context.Context, dir string) error{"device": runDevices, "dra": runClaims, "csi": runVolumes}
	if len(os.Args) != 3 || run[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "Usage: nodeplugins device|dra|csi KUBELET-DIRECTORY")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run[os.Args[1]](ctx, os.Args[2]); err != nil && ctx.Err() == nil {
		slog.Error("The plug-in ends", "error", err)
		os.Exit(1)
	}
}

// serve serves gRPC on a socket until ctx ends. A socket of an earlier process is replaced.
func serve(ctx context.Context, path string, register func(*grpc.Server)) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	_ = os.Remove(path)
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	register(s)
	go func() {
		<-ctx.Done()
		s.Stop()
	}()
	return s.Serve(l)
}

// registrar is the registration of a plug-in, at a socket in plugins_registry.
type registrar struct {
	registration.UnimplementedRegistrationServer
	info *registration.PluginInfo
}

// GetInfo says what the plug-in is, and at which socket it serves.
func (r registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return r.info, nil
}

// NotifyRegistrationStatus is the node's answer.
func (r registrar) NotifyRegistrationStatus(
	_ context.Context, s *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	slog.Info("The node has answered", "registered", s.PluginRegistered, "error", s.Error)
	return &registration.RegistrationStatusResponse{}, nil
}
