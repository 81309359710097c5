// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
)

// usualPort is the port of a kubelet's API.
const usualPort = "10250"

// listen opens the listener of the node's API.
func (n *node) listen() (net.Listener, error) {
	listener, err := listenAt(n.Server.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for the node's API: %w", err)
	}
	n.port = int32(listener.Addr().(*net.TCPAddr).Port)
	if n.Server.Admit != nil {
		listener = n.Server.Admit(listener)
	}
	if n.Server.TLS != nil {
		listener = tls.NewListener(listener, n.Server.TLS)
	}
	return listener, nil
}

// readOnlyPort is kubelet's read-only port of the node's API.
type readOnlyPort struct{ *node }

// listen opens the listener; nil if the kubelet configuration has no such port.
func (n readOnlyPort) listen(ctx context.Context) (net.Listener, error) {
	if n.Kubelet.ReadOnlyPort == 0 || n.Server.ReadOnly == nil {
		return nil, nil
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort(n.Kubelet.Address, strconv.Itoa(int(n.Kubelet.ReadOnlyPort))))
	if err != nil {
		return nil, fmt.Errorf("listen for the node's read-only API: %w", err)
	}
	return listener, nil
}

// serve serves the port, if there is one.
func (n readOnlyPort) serve(ctx context.Context, listener net.Listener) error {
	if listener == nil {
		return nil
	}
	return n.Server.ReadOnly(ctx, n.api(), listener)
}

// listenAt listens on host:port. Without a port it is 10250; port 0 is 10250 where that is free, else any free port.
func listenAt(address string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(cmp.Or(address, ":"+usualPort))
	if err != nil {
		return nil, err
	}
	if port == "0" {
		l, err := net.Listen("tcp", net.JoinHostPort(host, usualPort))
		if !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
	}
	return net.Listen("tcp", net.JoinHostPort(host, port))
}
