// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilproxy "k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/internal/apiserver/audit"
	"github.com/mortise-dev/mortise/internal/apiserver/bufferedconn"
)

// Responses to requests that cannot be forwarded, in upstream's words.
const (
	textUnavailable = "service unavailable"
	textRedirect    = "the backend attempted to redirect this request, which is not permitted"
	textTooMany     = "Too many requests, please try again later."
)

// Serve forwards a request to the server. lasting is true for long-running requests: watches, and streams in either
// direction. Only the client, the server or the end of end ends those.
func (s *Service) Serve(w http.ResponseWriter, r *http.Request, lasting bool, end context.Context) {
	a := s.aggregator
	who, ok := request.UserFrom(r.Context())
	switch {
	case a.cameRound(r):
		s.refuse(w, textLoop, http.StatusLoopDetected)
		return
	case !s.Available:
		s.refuse(w, textUnavailable, http.StatusServiceUnavailable)
		return
	case s.way.err != nil:
		s.refuse(w, s.way.err.Error(), http.StatusInternalServerError)
		return
	case !ok:
		s.refuse(w, "missing user", http.StatusInternalServerError) // upstream's words
		return
	}
	if !lasting {
		select {
		case s.entry.gate <- struct{}{}:
			defer func() { <-s.entry.gate }()
		default:
			w.Header().Set("Retry-After", "1")
			s.refuse(w, textTooMany, http.StatusTooManyRequests)
			return
		}
	}
	host, err := s.host(r.Context())
	if err != nil {
		a.o.Log.WarnContext(r.Context(), "Could not resolve the server of a registration", "kind", a.o.Form.Kind, "name", s.Name, "error", err)
		s.refuse(w, textUnavailable, http.StatusServiceUnavailable)
		return
	}
	ctx, cancel := s.bound(r, lasting)
	defer cancel()
	defer context.AfterFunc(end, cancel)()
	out := r.WithContext(ctx)
	out.URL = &url.URL{Scheme: "https", Host: host, Path: r.URL.Path}
	if r.URL.RawQuery != "" {
		out.URL.RawQuery = r.URL.Query().Encode()
	}
	out.Host = host
	out.Header = r.Header.Clone()
	out.Header.Del("Authorization")
	if id := audit.ID(r.Context()); id != "" {
		out.Header.Set(audit.Header, id)
	}
	if httpstream.IsUpgradeRequest(r) {
		identify(out.Header, who)
		s.upgrade(w, out, end)
		return
	}
	s.forward(w, out, who, lasting)
}

// refuse responds in place of the server, with upstream's text and a warning that names the registration.
func (s *Service) refuse(w http.ResponseWriter, text string, code int) {
	s.name(w, "")
	http.Error(w, text, code)
}

// name warns the client that the response is not the server's, and names the registration.
func (s *Service) name(w http.ResponseWriter, why string) {
	text := s.Title()
	switch {
	case !s.Available && s.Reason != "":
		text += ": " + s.Reason
	case !s.Available:
		text += ": not checked yet"
	case why != "":
		text += ": " + why
	}
	w.Header().Add("Warning", `299 - "`+text+`"`)
}

// bound returns a context with the request's deadline: none for a long-running request, a short one for discovery,
// which would otherwise delay the clients of all groups.
func (s *Service) bound(r *http.Request, lasting bool) (context.Context, context.CancelFunc) {
	switch {
	case lasting:
		return context.WithCancel(r.Context())
	case discovers(r):
		return context.WithTimeout(r.Context(), probeTime)
	}
	return context.WithTimeout(r.Context(), s.aggregator.o.RequestTimeout)
}

// discovers reports whether a request has the form /apis/GROUP/VERSION.
func discovers(r *http.Request) bool {
	info, _ := request.RequestInfoFrom(r.Context())
	return info != nil && !info.IsResourceRequest && strings.Count(strings.Trim(info.Path, "/"), "/") == 2
}

// late responds to a request that has timed out, as the stage for deadlines does.
func (s *Service) late(w http.ResponseWriter) {
	h := w.Header()
	h.Del("X-Kubernetes-Pf-Flowschema-Uid")
	h.Del("X-Kubernetes-Pf-Prioritylevel-Uid")
	h.Set("Content-Type", "text/plain; charset=utf-8")
	s.name(w, "no answer in time")
	w.WriteHeader(http.StatusGatewayTimeout)
	status := apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0).ErrStatus // upstream's words
	// the client may have left
	_ = json.NewEncoder(w).Encode(&status)
}

// buffers pools the buffers for copying responses.
type buffers struct{ pool sync.Pool }

const bufferSize = 256 << 10

// Get implements [httputil.BufferPool].
func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, bufferSize)
}

// Put implements [httputil.BufferPool].
func (b *buffers) Put(p []byte) { b.pool.Put(&p) }

// forward forwards a request that is not upgraded.
func (s *Service) forward(w http.ResponseWriter, r *http.Request, who user.Info, lasting bool) {
	p := httputil.ReverseProxy{
		Director:   func(*http.Request) {}, // the request is complete
		Transport:  &forwarding{s, who},
		BufferPool: &s.aggregator.buffers,
		ErrorLog:   log.New(io.Discard, "", 0), // about interrupted bodies, which the client notices
		ModifyResponse: func(resp *http.Response) error {
			if c := resp.StatusCode; !s.aggregator.o.ForwardRedirects && c >= 300 && c <= 399 && resp.Header.Get("Location") != "" {
				_ = resp.Body.Close()
				*resp = http.Response{
					StatusCode: http.StatusBadGateway, Header: http.Header{},
					Body: io.NopCloser(strings.NewReader(textRedirect)), ContentLength: int64(len(textRedirect)),
				}
			}
			if text := s.unread(); text != "" && discovers(r) {
				resp.Header.Add("Warning", text)
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if !lasting && !discovers(r) && errors.Is(r.Context().Err(), context.DeadlineExceeded) {
				s.late(w)
				return
			}
			s.Error(w, r, err)
		},
	}
	if c := bufferedconn.FromContext(r.Context()); c != nil && r.ProtoMajor == 1 {
		w = &bufferedWriter{w, c}
	}
	p.ServeHTTP(w, r)
}

// bufferedWriter sends each copied block with one write to the socket. TLS alone makes a write for every 16 KB.
type bufferedWriter struct {
	http.ResponseWriter
	conn *bufferedconn.Conn
}

// Unwrap lets http.ResponseController reach the connection.
func (c *bufferedWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// Write implements [http.ResponseWriter].
func (c *bufferedWriter) Write(p []byte) (int, error) {
	c.conn.Hold()
	n, err := c.ResponseWriter.Write(p)
	if e := c.conn.Release(); err == nil {
		err = e
	}
	return n, err
}

// Error responds to a request that did not reach the server, or whose upgrade failed. It implements the proxy's error
// responder.
func (s *Service) Error(w http.ResponseWriter, _ *http.Request, err error) {
	s.name(w, "no answer")
	http.Error(w, clip(err.Error()), http.StatusServiceUnavailable)
}

// forwarding is the transport of one request: it adds the headers for the user and for the original address.
type forwarding struct {
	service *Service
	who     user.Info
}

// RoundTrip implements [http.RoundTripper].
func (f *forwarding) RoundTrip(r *http.Request) (*http.Response, error) {
	identify(r.Header, f.who)
	t := utilproxy.Transport{Scheme: r.URL.Scheme, Host: r.URL.Host, RoundTripper: sending{f.service}}
	resp, err := t.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	for _, h := range foreign {
		delete(resp.Header, h)
	}
	return resp, nil
}

// foreign are the headers that this server sets in place of the other one's.
var foreign = []string{"Access-Control-Allow-Credentials", "Access-Control-Allow-Headers", "Access-Control-Allow-Methods",
	"Access-Control-Allow-Origin"}

type sending struct{ service *Service }

// most is the maximum size of a page whose links are rewritten, because all of it is read.
const most = 8 << 20

// RoundTrip implements [http.RoundTripper].
func (s sending) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := s.service.send(r)
	if err != nil && s.service.Available {
		s.service.entry.poke() // the server may be gone
	}
	if err == nil && strings.HasPrefix(strings.TrimSpace(resp.Header.Get("Content-Type")), "text/html") {
		resp.Body = http.MaxBytesReader(nil, resp.Body, most)
	}
	return resp, err
}

// upgrade forwards a request that upgrades its connection, and copies between both connections.
func (s *Service) upgrade(w http.ResponseWriter, r *http.Request, end context.Context) {
	ctx, bounded, stop := egress.BoundUpgrade(r.Context(), w)
	defer stop()
	h := utilproxy.NewUpgradeAwareHandler(r.URL, s.dialing(), true, true, s)
	h.ServeHTTP(egress.UpgradeUntil(end, bounded), r.WithContext(ctx))
}

// dialing returns a transport for one upgraded connection, which the ledger counts like a call.
func (s *Service) dialing() *http.Transport {
	dial := egress.Bounded(s.way.transport.DialContext)
	return &http.Transport{
		TLSClientConfig: s.way.transport.TLSClientConfig,
		DialContext: func(ctx context.Context, network, addr string) (c net.Conn, err error) {
			err = s.aggregator.o.Ledger.Call(ctx, s.ref(), extension.Policy{}, func(ctx context.Context) (err error) {
				c, err = dial(ctx, network, addr)
				return err
			})
			return c, err
		},
	}
}
