// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

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

// Node is what the node's own HTTP API (package server) needs of the node behind
// it. The real node (this package) and the simulated one both provide it.
//
// Errors that a client should see as something other than 500 are API status
// errors (k8s.io/apimachinery/pkg/api/errors): NotFound for a pod or container
// that is not on this node, BadRequest for one that is not in a state to serve.
// All methods may be called concurrently; objects returned belong to the caller.
type Node interface {
	// Name is the Node object's name.
	Name() string

	// Pods lists the pods bound to this node with the node's own, newest view of
	// their status.
	Pods() []*corev1.Pod

	// ContainerLogs writes the log of one container to the writers, as
	// options.{Container,Follow,Previous,TailLines,LimitBytes,SinceSeconds,SinceTime,Timestamps}
	// say. options.Stream has been resolved by the caller into nil writers.
	// It returns when the log ends, or with Follow when the container ends or ctx is done.
	ContainerLogs(ctx context.Context, target podspec.Target, options *corev1.PodLogOptions, stdout, stderr io.Writer) error

	// Exec prepares a command and returns the URL of the runtime's streaming server,
	// to which the caller's upgraded connection is to be proxied.
	Exec(ctx context.Context, target podspec.Target, command []string, streams podspec.Streams) (*url.URL, error)

	// Attach is Exec for the container's main process.
	Attach(ctx context.Context, target podspec.Target, streams podspec.Streams) (*url.URL, error)

	// PortForward prepares forwarding to ports of the pod's network namespace.
	PortForward(ctx context.Context, target podspec.Target, ports []int32) (*url.URL, error)

	// Run runs a command to its end without streams and returns its combined output
	// and exit code. Timeout zero means none.
	Run(ctx context.Context, target podspec.Target, command []string, timeout time.Duration) (output []byte, exitCode int32, err error)

	// Stats is what the node, and what runs on it, uses now.
	Stats(ctx context.Context, o stats.Options) (*stats.Usage, error)
}

// ServeFunc serves the node's HTTP API on a listener until ctx is done. The
// listener gives TLS connections already (their state is *tls.Conn's). It is passed
// in (ServerOptions.Serve), because package server imports this one.
type ServeFunc func(ctx context.Context, node Node, listener net.Listener) error

// ServeNodesFunc serves the APIs of many nodes on one listener, until ctx is done. Find returns the node that has an address of this
// machine, nil if none has; it returns equal values for one node.
type ServeNodesFunc func(ctx context.Context, find func(local net.Addr) Node, listener net.Listener) error
