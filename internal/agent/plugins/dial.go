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

// longestSocket is the maximum length of a socket's path, with the zero byte at its end, as Linux and macOS have it in sockaddr_un.
const longestSocket = 104

// Dialer has gRPC connect to the socket of a plug-in, whatever the length of its path.
func Dialer(path string) grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return connect(ctx, path) })
}

// connect connects to a socket. A path that is too long for the kernel is reached through its directory.
func connect(ctx context.Context, path string) (net.Conn, error) {
	if len(path) < longestSocket {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("open directory of socket: %w", err)
	}
	defer dir.Close()
	return (&net.Dialer{}).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
}
