// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package http2server

import (
	"context"
	"crypto/tls"
	"maps"
	"net/http"
	"slices"
	"sync"
)

// Server serves the HTTP/2 connections of an [http.Server], once Configure has connected the two.
type Server struct {
	o    Options
	http *http.Server

	mu        sync.Mutex
	conns     map[*conn]struct{}
	addresses map[string]*address // local ones
	leaving   bool
}

// address is what the connections to one local address have in common. The mutex of the Server guards it.
type address struct {
	conns    int
	received uint64 // the frames of those that have ended

	local   string   // does not change
	workers *workers // does not change
}

// is reports whether a is the address that a caller of the Server means: empty means all.
func (a *address) is(local string) bool { return local == "" || local == a.local }

// Configure has an http.Server's HTTP/2 connections served by this package. It must be called before the server serves. The server's
// Shutdown and Close, its BaseContext, ConnContext and ErrorLog mean the same as with net/http.
func (s *Server) Configure(srv *http.Server, o Options) {
	s.o, s.http = o.withDefaults(), srv
	if srv.TLSNextProto == nil {
		srv.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
	}
	srv.TLSNextProto["h2"] = func(_ *http.Server, c *tls.Conn, h http.Handler) {
		ctx := context.Background()
		if based, ok := h.(interface{ BaseContext() context.Context }); ok {
			ctx = based.BaseContext()
		}
		s.serve(ctx, c, h)
	}
	srv.RegisterOnShutdown(s.leave)
}

// serve serves a connection until it ends.
func (s *Server) serve(ctx context.Context, t *tls.Conn, h http.Handler) {
	c := newConn(s, t, h)
	if !s.add(c) {
		_ = t.Close()
		return
	}
	defer s.remove(c)
	c.serve(ctx)
}

// add counts a connection, and gives it workers; false: the server is ending.
func (s *Server) add(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving {
		return false
	}
	if s.conns == nil {
		s.conns, s.addresses = map[*conn]struct{}{}, map[string]*address{}
	}
	local := c.tls.LocalAddr().String()
	c.at = s.addresses[local]
	if c.at == nil {
		c.at = &address{local: local, workers: newWorkers()}
		s.addresses[local] = c.at
	}
	c.at.conns++
	s.conns[c] = struct{}{}
	return true
}

// remove ends what add began. Workers without a connection end with the server, or once there are those of another address.
func (s *Server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	c.at.conns--
	c.at.received += c.pings.frames.Load()
	if s.leaving || len(s.addresses) > 1 {
		s.endWorkers()
	}
}

// endWorkers ends the workers of addresses without a connection. s.mu is held.
func (s *Server) endWorkers() {
	for local, at := range s.addresses {
		if at.conns == 0 {
			at.workers.end()
			delete(s.addresses, local)
		}
	}
}

// leave has the connections finish their requests and end.
func (s *Server) leave() {
	s.mu.Lock()
	s.leaving = true
	all := slices.Collect(maps.Keys(s.conns))
	s.endWorkers()
	s.mu.Unlock()
	for _, c := range all {
		c.leave()
	}
}

// logf writes to the server's ErrorLog, if it has one.
func (s *Server) logf(format string, args ...any) {
	if s.http.ErrorLog != nil {
		s.http.ErrorLog.Printf(format, args...)
	}
}
