// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package http2server

import (
	"context"
	"crypto/tls"
	"net/http"
	"sync"
)

// Server serves the HTTP/2 connections of an [http.Server].
type Server struct {
	o    Options
	http *http.Server

	mu      sync.Mutex
	conns   map[*conn]struct{}
	leaving bool

	workers workers
}

// Configure has an http.Server's HTTP/2 connections served by this package. It must be called before the server serves. The server's
// Shutdown and Close, its BaseContext, ConnContext and ErrorLog mean the same as with net/http.
func Configure(srv *http.Server, o Options) *Server {
	s := &Server{o: o.withDefaults(), http: srv, conns: map[*conn]struct{}{}}
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
	return s
}

// serve serves a connection until it ends.
func (s *Server) serve(ctx context.Context, t *tls.Conn, h http.Handler) {
	c := newConn(s, t, h)
	s.mu.Lock()
	if s.leaving {
		s.mu.Unlock()
		_ = t.Close()
		return
	}
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	c.serve(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if s.leaving && len(s.conns) == 0 {
		s.workers.end()
	}
}

// leave has the connections finish their requests and end.
func (s *Server) leave() {
	s.mu.Lock()
	s.leaving = true
	var all []*conn
	for c := range s.conns {
		all = append(all, c)
	}
	if len(all) == 0 {
		s.workers.end()
	}
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

// workers serve streams in goroutines that are used again, whose stacks have grown to what a handler needs.
type workers struct {
	mu    sync.Mutex
	idle  []chan *stream
	ended bool
}

// run has a worker serve a stream.
func (w *workers) run(st *stream) {
	w.mu.Lock()
	if n := len(w.idle); n > 0 {
		to := w.idle[n-1]
		w.idle = w.idle[:n-1]
		w.mu.Unlock()
		to <- st // has room for one
		return
	}
	w.mu.Unlock()
	go w.work(st)
}

// work serves a stream, and then others.
func (w *workers) work(st *stream) {
	var more chan *stream
	for st != nil {
		st.serve()
		if more == nil {
			more = make(chan *stream, 1)
		}
		w.mu.Lock()
		if w.ended || len(w.idle) >= maxWorkers {
			w.mu.Unlock()
			return
		}
		w.idle = append(w.idle, more)
		w.mu.Unlock()
		st = <-more
	}
}

// end ends the workers that wait.
func (w *workers) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	for _, c := range w.idle {
		close(c)
	}
	w.idle = nil
}
