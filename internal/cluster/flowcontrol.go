// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/apiserver"
)

// flowControl converts the settings for the API server. Spread is nil for a server without others.
func flowControl(f *options.FlowControl, spread *apiserver.Spread) apiserver.FlowControl {
	out := apiserver.FlowControl{
		MaxReads: f.MaxRequestsInflight, MaxWrites: f.MaxMutatingRequestsInflight,
		Plain: f.PriorityAndFairness != nil && !*f.PriorityAndFairness,
	}
	out.Bounds = apiserver.Bounds{
		Connections: f.Connections, ConnectionsPerClient: f.ConnectionsPerClient, Streams: f.MaxStreams, BodyBytes: f.BodyBytes,
		Watches: f.Watches, GoawayChance: f.GoawayChance, Spread: spread, OwnHTTP2: f.HTTP2Server != options.HTTP2ServerGo,
	}
	if f.RequestTimeout != nil {
		out.RequestTimeout = *f.RequestTimeout
	}
	return out
}
