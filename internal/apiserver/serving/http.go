// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package serving

import (
	"net/http"
	"time"

	"github.com/mortise-dev/mortise/internal/apiserver/http2server"
)

// The timeouts of connections.
const (
	headerTime = 32 * time.Second // to receive the head of a request over HTTP/1.1
	idleTime   = 90 * time.Second // without a request. Other HTTP/2 frames, and an endless head, do not count as one
	takeTime   = 30 * time.Second // for the client to receive at least one byte over HTTP/2
)

// The sizes of HTTP/2.
const (
	frameBytes   = 256 << 10
	streamWindow = 256 << 10
	connWindow   = 4 << 20
)

// OwnHTTP2 has h2 serve the server's HTTP/2, with the same limits.
func OwnHTTP2(h2 *http2server.Server, srv *http.Server) {
	h2.Configure(srv, http2server.Options{
		Streams: srv.HTTP2.MaxConcurrentStreams, HeaderBytes: srv.MaxHeaderBytes, FrameBytes: frameBytes, StreamWindow: streamWindow,
		ConnWindow: connWindow, Idle: idleTime, Take: takeTime,
	})
}

// HTTPServer returns a server with limits: of the bytes of a request's headers, and of the concurrent requests of one
// HTTP/2 connection.
func HTTPServer(handler http.Handler, headerBytes, streams int) *http.Server {
	return &http.Server{
		Handler: handler, MaxHeaderBytes: headerBytes, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: streams, MaxReadFrameSize: frameBytes, MaxReceiveBufferPerStream: streamWindow,
			MaxReceiveBufferPerConnection: connWindow,
			WriteByteTimeout:              takeTime,
		},
	}
}
