// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/util/proxy"
	translator "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	s.command(w, r, func(t podspec.Target, streams podspec.Streams) (*url.URL, error) {
		return s.node.Exec(r.Context(), t, r.URL.Query()["command"], streams)
	})
}

func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	s.command(w, r, func(t podspec.Target, streams podspec.Streams) (*url.URL, error) {
		return s.node.Attach(r.Context(), t, streams)
	})
}

// command proxies exec or attach to the URL that prepare returns. It translates WebSocket clients that signal the end of their input (v5)
// to SPDY, which every runtime speaks, and passes all others through.
func (s *Server) command(w http.ResponseWriter, r *http.Request, prepare func(podspec.Target, podspec.Streams) (*url.URL, error)) {
	o, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	t := target(r)
	pod := s.find(t)
	if pod == nil {
		http.Error(w, "pod does not exist", http.StatusNotFound)
		return
	}
	t.UID = pod.UID // a new pod of the same name must not be used
	location, err := prepare(t, podspec.Streams{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, TTY: o.TTY})
	if err != nil {
		writeError(w, err, http.StatusInternalServerError)
		return
	}
	transport := toRuntime()
	if wsstream.IsWebSocketRequestWithStreamCloseProtocol(r) {
		egress.BoundTranslation(location, transport, func(location *url.URL, transport http.RoundTripper) http.Handler {
			return translator.NewStreamTranslatorHandler(location, transport, 0,
				translator.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY})
		}).ServeHTTP(s.closed.watch(w), r)
		return
	}
	s.upgrade(w, r, proxy.NewUpgradeAwareHandler(location, transport, false, true, responder{}))
}

// toRuntime returns the transport to the runtime's streaming server. It bounds the response to an upgrade. TLS certificates must be trusted
// by the machine.
func toRuntime() *http.Transport {
	return &http.Transport{DialContext: egress.Bounded(nil), TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}
}

// upgrade proxies a request that upgrades its connection. It bounds the wait for the runtime's response.
func (s *Server) upgrade(w http.ResponseWriter, r *http.Request, handler http.Handler) {
	ctx, w, stop := egress.BoundUpgrade(r.Context(), s.closed.watch(w))
	defer stop()
	handler.ServeHTTP(w, r.WithContext(ctx))
}

// portForward proxies to the runtime. It unwraps SPDY that is tunneled in a WebSocket.
func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	tunnel := wsstream.IsWebSocketRequestWithTunnelingProtocol(r)
	o := &portforward.V4Options{}
	if !tunnel {
		var err error
		if o, err = portforward.NewV4Options(r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	t := target(r)
	pod := s.find(t)
	if pod == nil {
		http.Error(w, "pod does not exist", http.StatusNotFound)
		return
	}
	t.UID = pod.UID // a new pod of the same name must not be used
	location, err := s.node.PortForward(r.Context(), t, o.Ports)
	if err != nil {
		writeError(w, err, http.StatusInternalServerError)
		return
	}
	var handler http.Handler = proxy.NewUpgradeAwareHandler(location, toRuntime(), false, true, responder{})
	if tunnel {
		handler = translator.NewTunnelingHandler(handler)
	}
	s.upgrade(w, r, handler)
}

// run runs a command to its end and responds with its output.
func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	t := target(r)
	pod := s.find(t)
	if pod == nil {
		http.Error(w, "pod does not exist", http.StatusNotFound)
		return
	}
	t.UID = pod.UID // a new pod of the same name must not be used
	out, code, err := s.node.Run(r.Context(), t, strings.Split(r.FormValue("cmd"), " "), 0)
	if err != nil {
		writeError(w, err, http.StatusInternalServerError)
		return
	}
	if code != 0 {
		w.WriteHeader(http.StatusInternalServerError)
	}
	w.Write(out)
}

// responder responds when a stream could not be proxied.
type responder struct{}

func (responder) Error(w http.ResponseWriter, _ *http.Request, err error) {
	writeError(w, err, http.StatusInternalServerError)
}

// streams are the hijacked connections, which the HTTP server no longer tracks. They are closed when the server ends.
type streams struct {
	mu    sync.Mutex
	conns map[net.Conn]bool
	ended bool
}

// watch tracks the connection if the handler hijacks it.
func (s *streams) watch(w http.ResponseWriter) http.ResponseWriter { return &watched{w, s} }

func (s *streams) add(c net.Conn) net.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		c.Close()
		return c
	}
	if s.conns == nil {
		s.conns = map[net.Conn]bool{}
	}
	w := &watchedConn{Conn: c, s: s}
	s.conns[w] = true
	return w
}

func (s *streams) closeAll() {
	s.mu.Lock()
	conns := s.conns
	s.conns, s.ended = nil, true
	s.mu.Unlock()
	for c := range conns {
		c.Close()
	}
}

type watched struct {
	http.ResponseWriter
	s *streams
}

// Unwrap lets http.ResponseController reach Flush and the deadlines.
func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *watched) Flush() { http.NewResponseController(w.ResponseWriter).Flush() }

func (w *watched) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	return w.s.add(c), rw, nil
}

type watchedConn struct {
	net.Conn
	s *streams
}

func (c *watchedConn) Close() error {
	c.s.mu.Lock()
	delete(c.s.conns, c)
	c.s.mu.Unlock()
	return c.Conn.Close()
}
