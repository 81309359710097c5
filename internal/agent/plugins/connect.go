// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"

	"google.golang.org/grpc"
)

// longestSocket is the longest path that an address of a socket can have, in bytes.
const longestSocket = 107

// Connect connects to a plug-in's socket. Its path may be longer than an address: a plug-in that finds the node's directories at
// /var/lib/kubelet makes sockets whose paths are longer in the node's root directory. The name in the directory has 88 bytes at most.
func Connect(ctx context.Context, path string) (net.Conn, error) {
	at, done, err := address(path)
	if err != nil {
		return nil, err
	}
	defer done()
	return (&net.Dialer{}).DialContext(ctx, "unix", at)
}

// Listen listens at a socket, whose path may be longer than an address as well. Closing the listener removes the socket.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	at, done, err := address(path)
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := new(net.ListenConfig).Listen(ctx, "unix", at)
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // the address may be another file's by then
	return &listener{Listener: l, path: path}, nil
}

// listener is a listener that removes its socket.
type listener struct {
	net.Listener
	path string
	once sync.Once
}

// Close implements [net.Listener].
func (l *listener) Close() error {
	err := l.Listener.Close()
	l.once.Do(func() { // a later socket of the path stays
		if gone := os.Remove(l.path); !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	})
	return err
}

// address returns the address of a socket, which is good until done is called.
func address(path string) (at string, done func(), err error) {
	if len(path) <= longestSocket {
		return path, func() {}, nil
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return "", nil, fmt.Errorf("open directory of a plug-in's socket: %w", err)
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)), func() { dir.Close() }, nil
}

// At returns the option of a gRPC client for the plug-in at a socket. The client's target is [Target].
func At(path string) grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return Connect(ctx, path) })
}

// Target is the target of gRPC clients of plug-ins, which [At] leads to a socket.
const Target = "passthrough:///localhost"
