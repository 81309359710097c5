// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package serving

import (
	"net/http"
	"time"
)

// The times that a server gives its clients.
const (
	headerTime = 32 * time.Second // for the head of a request over HTTP/1.1
	idleTime   = 90 * time.Second // without a request. Over HTTP/2 frames of other kinds, and a head that does not end, are no request
	takeTime   = 30 * time.Second // to take at least one byte of what HTTP/2 sends them
)

// HTTPServer is a server with bounds for clients: one HTTP/2 connection has at most that many concurrent requests.
func HTTPServer(handler http.Handler, headerBytes, streams int) *http.Server {
	return &http.Server{
		Handler: handler, MaxHeaderBytes: headerBytes, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: streams, MaxReadFrameSize: 256 << 10, MaxReceiveBufferPerStream: 256 << 10, MaxReceiveBufferPerConnection: 4 << 20,
			WriteByteTimeout: takeTime,
		},
	}
}
