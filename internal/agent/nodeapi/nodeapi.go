// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeapi is the seam between a node and its HTTP API: what package server serves, and what package agent (a real node) and
// package simulated implement.
package nodeapi

import (
	"context"
	"io"
	"net"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/stats"
)

// Node is the view of a node that its HTTP API (package server) needs. Package agent implements it for real nodes, and package
// simulated for simulated ones.
//
// Methods return API status errors (k8s.io/apimachinery/pkg/api/errors) for errors that clients should see as another code than 500:
// NotFound for a pod or container that is not on this node, BadRequest for one in the wrong state. All methods are safe for concurrent
// use; the caller owns returned objects.
type Node interface {
	// Name returns the Node object's name.
	Name() string

	// Pods returns the pods bound to this node, with the newest status that the node has computed.
	Pods() []*corev1.Pod

	// ContainerLogs writes the log of one container to the writers, as Container, Follow, Previous, TailLines, LimitBytes, SinceSeconds,
	// SinceTime and Timestamps of options require. For options.Stream the caller passes nil writers. It returns when the log ends; with
	// Follow, when the container ends or ctx is done.
	ContainerLogs(ctx context.Context, target podspec.Target, options *corev1.PodLogOptions, stdout, stderr io.Writer) error

	// Exec prepares a command and returns the URL of the runtime's streaming server. The caller proxies the upgraded connection to it.
	Exec(ctx context.Context, target podspec.Target, command []string, streams podspec.Streams) (*url.URL, error)

	// Attach is Exec for the container's main process.
	Attach(ctx context.Context, target podspec.Target, streams podspec.Streams) (*url.URL, error)

	// PortForward prepares forwarding to ports of the pod's network namespace.
	PortForward(ctx context.Context, target podspec.Target, ports []int32) (*url.URL, error)

	// Run runs a command without streams, and returns its combined output and exit code. A zero timeout means none.
	Run(ctx context.Context, target podspec.Target, command []string, timeout time.Duration) (output []byte, exitCode int32, err error)

	// Stats returns the current resource usage of the node and its containers.
	Stats(ctx context.Context, o stats.Options) (*stats.Usage, error)
}

// Checkpointer is a [Node] that writes checkpoints of containers.
type Checkpointer interface {
	// Checkpoint writes a checkpoint of the container to the node's disk, and returns its path. The timeout is in seconds; 0: the
	// runtime's.
	Checkpoint(ctx context.Context, target podspec.Target, timeout int64) (string, error)
}

// ServeFunc serves the node's HTTP API on a listener until ctx is done. The listener returns TLS connections (*tls.Conn). Nodes
// get it as an option (ServerOptions.Serve of package agent).
type ServeFunc func(ctx context.Context, node Node, listener net.Listener) error

// ServeNodesFunc serves the APIs of many nodes on one listener until ctx is done. The function find returns the node that owns an address
// of this machine, or nil; for one node it always returns equal values.
type ServeNodesFunc func(ctx context.Context, find func(local net.Addr) Node, listener net.Listener) error
