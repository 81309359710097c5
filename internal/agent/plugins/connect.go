// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
)

// longestSocket is the longest path that an address of a socket can have, in bytes.
const longestSocket = 107

// Connect connects to a plug-in's socket. Its path may be longer than an address: a plug-in that finds the node's directories at
// /var/lib/kubelet makes sockets whose paths are longer in the node's root directory. The name in the directory has 88 bytes at most.
func Connect(ctx context.Context, path string) (net.Conn, error) {
	if len(path) > longestSocket {
		dir, err := os.Open(filepath.Dir(path))
		if err != nil {
			return nil, fmt.Errorf("open directory of a plug-in's socket: %w", err)
		}
		defer dir.Close()
		path = fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))
	}
	return (&net.Dialer{}).DialContext(ctx, "unix", path)
}

// At returns the option of a gRPC client for the plug-in at a socket. The client's target is [Target].
func At(path string) grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return Connect(ctx, path) })
}

// Target is the target of gRPC clients of plug-ins, which [At] leads to a socket.
const Target = "passthrough:///localhost"
