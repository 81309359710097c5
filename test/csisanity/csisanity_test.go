// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package csisanity runs the conformance suite of CSI drivers, csi-sanity, on storage.mortise.dev. It is a module of its own: the suite's
// dependencies are not Mortise's.
package csisanity

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"google.golang.org/grpc"

	"github.com/mortise-dev/mortise/internal/agent/localstorage"
)

// mounts are simulated mounts, so that the suite needs no root.
type mounts map[string]bool

func (m mounts) Bind(_, target string) error           { m[target] = true; return nil }
func (m mounts) Unmount(dir string) error              { delete(m, dir); return nil }
func (m mounts) IsMountPoint(dir string) (bool, error) { return m[dir], nil }

func TestSanity(t *testing.T) {
	dir, err := os.MkdirTemp("", "sanity") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "csi.sock")
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	driver := localstorage.New(localstorage.Options{
		Dir: filepath.Join(dir, "volumes"), Root: dir, NodeName: "node", Mounter: mounts{}, Logger: slog.New(slog.DiscardHandler),
	})
	server := grpc.NewServer()
	driver.Register(server)
	go func() { _ = server.Serve(l) }()
	defer server.Stop()

	config := sanity.NewTestConfig()
	config.Address = "unix:" + socket
	config.TestVolumeSize, config.TestVolumeExpandSize = 1<<20, 1<<21 // the driver needs as much room on the disk
	config.TargetPath, config.StagingPath = filepath.Join(dir, "target"), filepath.Join(dir, "staging")
	sanity.Test(t, config)
}
