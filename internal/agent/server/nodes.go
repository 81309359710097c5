// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"

	"github.com/mortise-dev/mortise/internal/agent/nodeapi"
)

// ServeNodes returns the function that serves the APIs of many nodes on one listener. The local address of a connection decides which node
// serves it.
func ServeNodes(o Options) nodeapi.ServeNodesFunc {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = ownProcess()
	}
	return func(ctx context.Context, find func(net.Addr) nodeapi.Node, listener net.Listener) error {
		n := &nodes{find: find, o: o, servers: map[string]*Server{}}
		defer n.closeAll()
		return serve(ctx, n, listener, o.Logger)
	}
}

// nodes are the servers of nodes that clients have connected to, by the nodes' names.
type nodes struct {
	find func(local net.Addr) nodeapi.Node
	o    Options

	mu      sync.Mutex
	servers map[string]*Server
}

// ServeHTTP serves the request by the node whose address the client connected to.
func (n *nodes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	node := n.find(local)
	if node == nil {
		http.Error(w, "no node has the address", http.StatusNotFound)
		return
	}
	n.server(node).ServeHTTP(w, r)
}

// server returns the server of a node.
func (n *nodes) server(node nodeapi.Node) *Server {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.servers[node.Name()]
	if s == nil || s.node != node {
		s = New(node, n.o)
		n.servers[node.Name()] = s
	}
	return s
}

func (n *nodes) closeAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.servers {
		s.closed.closeAll()
	}
}
