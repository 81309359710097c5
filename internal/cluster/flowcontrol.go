// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/http2server"
)

// flowControl converts the settings for the API server. Spread is nil for a server without others. Unless the settings choose net/http,
// http2 serves the HTTP/2 connections.
func flowControl(f *options.FlowControl, spread *apiserver.Spread, http2 *http2server.Server) apiserver.FlowControl {
	out := apiserver.FlowControl{
		MaxReads: f.MaxRequestsInflight, MaxWrites: f.MaxMutatingRequestsInflight,
		Plain: f.PriorityAndFairness != nil && !*f.PriorityAndFairness,
	}
	out.Bounds = apiserver.Bounds{
		Connections: f.Connections, ConnectionsPerClient: f.ConnectionsPerClient, Streams: f.MaxStreams, BodyBytes: f.BodyBytes,
		Watches: f.Watches, GoawayChance: f.GoawayChance, Spread: spread,
	}
	if f.HTTP2Server != options.HTTP2ServerGo {
		out.Bounds.HTTP2 = http2
	}
	if f.RequestTimeout != nil {
		out.RequestTimeout = *f.RequestTimeout
	}
	return out
}
