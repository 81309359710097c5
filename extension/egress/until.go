// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"bufio"
	"context"
	"net"
	"net/http"
)

// UpgradeUntil returns a writer whose Hijack returns a connection that is closed when end is done. A proxy that has taken over a client's
// connection copies its bytes until one side ends: neither the request's context nor the HTTP server's Close ends it then.
func UpgradeUntil(end context.Context, w http.ResponseWriter) http.ResponseWriter {
	return &endingWriter{w, func(f func()) (stop func() bool) { return context.AfterFunc(end, f) }}
}

type endingWriter struct {
	http.ResponseWriter
	atEnd func(f func()) (stop func() bool) // calls f at the end, unless it is stopped before
}

// Unwrap lets http.ResponseController reach the connection.
func (w *endingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack implements [http.Hijacker].
func (w *endingWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	return &endingConn{Conn: c, from: rw.Reader, stop: w.atEnd(func() { _ = c.Close() })}, rw, nil
}

type endingConn struct {
	net.Conn
	from *bufio.Reader // returns first what the client sent before the response
	stop func() bool
}

// Read implements [net.Conn].
func (c *endingConn) Read(p []byte) (int, error) { return c.from.Read(p) }

// Close implements [net.Conn].
func (c *endingConn) Close() error {
	c.stop()
	return c.Conn.Close()
}
