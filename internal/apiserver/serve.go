// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/internal/apiserver/authenticate"
	"github.com/mortise-dev/mortise/internal/apiserver/bufferedconn"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
)

// Serve serves TLS connections of the listeners, and runs the server, until ctx ends. Then it lets requests finish, and
// ends watches. It closes the listeners. An error of a listener ends the server.
func (s *Server) Serve(ctx context.Context, listeners ...net.Listener) error {
	m := s.opts.Material
	if m == nil {
		return errors.New("serve API: no certificates")
	}
	bounds, handler := &s.opts.FlowControl.Bounds, s.handler
	if front := s.opts.Front; front != nil {
		handler = front(handler)
	}
	srv := serving.HTTPServer(goaway(bounds.GoawayChance, bounds.Spread.handler(handler)), maxHeader, ptr.Deref(bounds.Streams, maxStreams))
	if bounds.HTTP2 != nil {
		serving.OwnHTTP2(bounds.HTTP2, srv)
	}
	srv.ErrorLog = log.New(&connectionLog{server: s}, "", 0)
	srv.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return bufferedconn.NewContext(authenticate.WithConnection(bounds.Spread.begin(ctx)), c)
	}
	srv.TLSConfig = &tls.Config{
		Certificates: []tls.Certificate{m.Server.TLS()}, MinVersion: tls.VersionTLS12,
		ClientAuth: tls.RequestClientCert, ClientCAs: m.CA.Pool(), NextProtos: []string{"h2", "http/1.1"},
		DynamicRecordSizingDisabled: true, // small first records help browsers that render partial responses
	}
	if m.Certificates != nil {
		srv.TLSConfig.Certificates, srv.TLSConfig.GetCertificate = nil, m.Certificates.Get
	}
	s.askCertificates(srv.TLSConfig)
	running, stop := context.WithCancel(ctx)
	defer stop()
	var accepting errgroup.Group
	admitted := bounds.connections()
	for _, l := range listeners {
		s.nodes.Listens(l.Addr())
		accepting.Go(func() error {
			err := srv.ServeTLS(bufferedconn.Listen(admitted.listen(l)), "", "")
			if errors.Is(err, http.ErrServerClosed) {
				return nil
			}
			stop()
			return fmt.Errorf("serve API on %s: %w", l.Addr(), err)
		})
	}
	background, end := context.WithCancel(context.WithoutCancel(ctx)) // outlasts ctx until requests are finished
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err = s.Run(background)
	}()
	select {
	case <-running.Done():
	case <-ended:
	}
	s.drain(srv, func() { end(); <-ended })
	return errors.Join(err, accepting.Wait())
}

// streamWait is how long connections may stay open after their streams have ended.
const streamWait = 5 * time.Second

// drain shuts the server down as kube-apiserver does. First /readyz fails and the server accepts no new requests. Then
// it finishes the requests in flight. Only then does it end watches and streams, and with them the connections.
func (s *Server) drain(srv *http.Server, end func()) {
	s.Leave()
	closing := make(chan struct{})
	grace, done := context.WithTimeout(context.Background(), s.opts.Shutdown.Finish+streamWait)
	defer done()
	go func() {
		defer close(closing)
		_ = srv.Shutdown(grace) // connections that are still open afterwards are closed below
	}()
	s.opts.FlowControl.Bounds.Spread.leave()
	finished := time.NewTimer(s.opts.Shutdown.Finish)
	defer finished.Stop()
	select {
	case <-s.underway.close():
	case <-finished.C:
	}
	end()
	streams := time.NewTimer(cmp.Or(s.opts.Shutdown.Streams, streamWait))
	defer streams.Stop()
	select {
	case <-closing:
	case <-streams.C:
		done()
		<-closing
	}
	_ = srv.Close()
}

// gate counts the requests in flight, except watches and streams, and accepts none once it is closed.
type gate struct {
	n       atomic.Int64
	closed  atomic.Bool
	once    sync.Once
	closing chan struct{} // closed with the gate
	drained chan struct{} // closed when the gate is closed and all requests have left
}

func newGate() *gate { return &gate{closing: make(chan struct{}), drained: make(chan struct{})} }

func (g *gate) enter() bool {
	g.n.Add(1)
	if !g.closed.Load() {
		return true
	}
	g.leave()
	return false
}

func (g *gate) leave() {
	if g.n.Add(-1) == 0 && g.closed.Load() {
		g.once.Do(func() { close(g.drained) })
	}
}

// close closes the gate. The returned channel is closed when all requests have left.
func (g *gate) close() <-chan struct{} {
	if g.closed.CompareAndSwap(false, true) {
		close(g.closing)
	}
	if g.n.Load() == 0 {
		g.once.Do(func() { close(g.drained) })
	}
	return g.drained
}

// late reports whether a request is answered also while the server ends.
func late(path string) bool {
	for _, p := range []string{"/healthz", "/livez", "/readyz", "/metrics", "/debug/pprof"} {
		if strings.HasPrefix(path, p) {
			return true
		}
	}
	return false
}

// refuseLate refuses requests that arrive on open connections during the shutdown.
func refuseLate(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Retry-After", "1")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	status.Write(w, r, apierrors.NewServiceUnavailable("apiserver is shutting down")) // upstream's words
}

// connectionLog receives the log of net/http about connections, and counts failed handshakes.
type connectionLog struct{ server *Server }

func (c *connectionLog) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("TLS handshake error")) {
		c.server.metrics.Handshake()
	}
	c.server.opts.Log.Debug(strings.TrimSpace(string(line)))
	return len(line), nil
}
