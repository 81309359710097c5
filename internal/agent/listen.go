// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
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
