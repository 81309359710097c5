// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"log/slog"
	"net"
)

// pass passes each connection to one listener on to the next one that the other listener has, until ctx ends.
func pass(ctx context.Context, to, from net.Listener) error {
	context.AfterFunc(ctx, func() {
		to.Close()
		from.Close()
	})
	for {
		client, err := to.Accept()
		if err != nil {
			return ended(ctx, err)
		}
		server, err := from.Accept()
		if err != nil {
			client.Close()
			return ended(ctx, err)
		}
		go copyBoth(client, server)
	}
}

// ended returns no error after the end of ctx.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// copyBoth copies between two connections until one ends.
func copyBoth(a, b net.Conn) {
	done := make(chan error, 2)
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		go func() {
			_, err := io.Copy(way[0], way[1])
			done <- err
		}()
	}
	if err := <-done; err != nil {
		slog.Warn("A connection has ended", "err", err)
	}
	a.Close()
	b.Close()
	<-done
}
