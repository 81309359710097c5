// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package embedtest starts a cluster for a Go test.
//
//	func TestMyController(t *testing.T) {
//		cluster := embedtest.New(t)
//		client := cluster.Client()
//		…
//	}
//
// The cluster runs in the test's process, in memory, on a free port of 127.0.0.1 over TLS, with all controllers, the scheduler and one
// simulated node. It stops when the test ends, and the test fails if the cluster does not stop cleanly.
//
// # Stability
//
// What this package exports only grows: a committed list of it is compared in a test, and a change that breaks a program is announced in a
// release before.
package embedtest

import (
	"testing"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/options"
)

// New starts a cluster with the zero options, which also records traces of writes, for what WaitFor logs.
func New(t testing.TB) *embed.Server {
	t.Helper()
	return Start(t, server())
}

// server is the cluster of New and Main.
func server() *embed.Server {
	return &embed.Server{APIServer: options.APIServer{Explain: options.Explain{Enabled: true}}}
}

// Start starts the cluster that s describes. It ends the test if the cluster cannot start.
func Start(t testing.TB, s *embed.Server) *embed.Server {
	t.Helper()
	if err := s.Start(t.Context()); err != nil {
		t.Fatalf("start cluster: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Errorf("stop cluster: %v", err)
		}
	})
	return s
}
