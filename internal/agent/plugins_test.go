// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// unknownPlugin is a plug-in of a type that nodes have no handler for.
type unknownPlugin struct {
	registration.UnimplementedRegistrationServer
	told chan *registration.RegistrationStatus
}

func (unknownPlugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: "Unknown", Name: "a", SupportedVersions: []string{"v1"}}, nil
}

func (p unknownPlugin) NotifyRegistrationStatus(
	_ context.Context, status *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	p.told <- status
	return &registration.RegistrationStatusResponse{}, nil
}

// A node looks for plug-ins in kubelet's registration directory.
func TestPluginsRegister(t *testing.T) {
	c, _ := newFake(t, nil)
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	p := unknownPlugin{told: make(chan *registration.RegistrationStatus, 10)}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, p)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	registry := filepath.Join(c.options.Host.RootDir, "plugins_registry")
	if err := errors.Join(os.MkdirAll(registry, 0o755), os.Symlink(filepath.Join(dir, "s"), filepath.Join(registry, "a.sock"))); err != nil {
		t.Fatal(err)
	}
	select {
	case status := <-p.told:
		if status.PluginRegistered || status.Error == "" {
			t.Errorf("the plug-in is told %v", status)
		}
	case <-time.After(20 * time.Second):
		t.Error("the plug-in is not asked")
	}
}
