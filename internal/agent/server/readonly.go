// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/mortise-dev/mortise/internal/agent/nodeapi"
)

// ServeReadOnly returns the function with which a node serves kubelet's read-only port: health, pods, statistics and metrics, by plain
// HTTP and to every client. Of the options it uses those of the metrics, Host, Logger and Clock.
func ServeReadOnly(o Options) nodeapi.ServeFunc {
	o.Effective, o.Pages, o.Kubelet, o.Reviews = nil, nil, nil, nil
	return func(ctx context.Context, node nodeapi.Node, listener net.Listener) error {
		s := New(node, o)
		return serve(ctx, readOnly{s}, listener, s.o.Logger)
	}
}

// readOnly is the API at the read-only port.
type readOnly struct{ *Server }

// ServeHTTP serves the pages that need no authorization, and refuses the others as kubelet does.
func (s readOnly) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.o.Requests.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		root, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		switch {
		case slices.Contains([]string{"healthz", "pods", "stats", "metrics"}, root):
			s.mux.ServeHTTP(w, r)
		case slices.Contains([]string{"run", "exec", "attach", "portForward", "containerLogs", "runningpods", "debug", "logs"}, root):
			http.Error(w, "Debug endpoints are disabled.", http.StatusMethodNotAllowed)
		default:
			http.NotFound(w, r)
		}
	}), w, r, s.o.Clock)
}
