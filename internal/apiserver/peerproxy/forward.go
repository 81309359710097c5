// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package peerproxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/httpstream"
	utilproxy "k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/transport"

	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/internal/apiserver/audit"
)

// Serve forwards a request for a resource that this server does not serve. It reports whether it did: false, and the request is untouched,
// if it was forwarded already or no other server serves the resource. End ends long-running requests.
func (p *Proxy) Serve(w http.ResponseWriter, r *http.Request, of schema.GroupVersionResource, end context.Context) bool {
	if r.Header.Get(Header) == "true" {
		return false
	}
	to := p.find(of)
	who, ok := request.UserFrom(r.Context())
	if len(to) == 0 || !ok {
		return false
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(end, cancel)()
	out := r.Clone(ctx)
	out.Header.Del("Authorization")
	out.Header.Set(Header, "true")
	transport.SetAuthProxyHeaders(out, who.GetName(), who.GetUID(), who.GetGroups(), who.GetExtra())
	if id := audit.ID(r.Context()); id != "" {
		out.Header.Set(audit.Header, id)
	}
	rand.Shuffle(len(to), func(i, j int) { to[i], to[j] = to[j], to[i] })
	f := &forwarding{proxy: p, to: to, of: of}
	location := &url.URL{Scheme: "https", Host: to[0].Address.String(), Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery}
	out.URL, out.Host = location, location.Host
	counted := &coded{ResponseWriter: w, code: http.StatusOK}
	if httpstream.IsUpgradeRequest(r) {
		f.upgrade(counted, out, end)
	} else {
		f.send(counted, out)
	}
	p.metrics.rerouted.WithLabelValues(strconv.Itoa(counted.code), of.Group, of.Version, of.Resource).Inc()
	return true
}

// forwarding is the transport of one request, and answers in place of servers that do not.
type forwarding struct {
	proxy *Proxy
	to    []Server
	of    schema.GroupVersionResource
}

// send forwards a request, and its answer.
func (f *forwarding) send(w http.ResponseWriter, r *http.Request) {
	h := utilproxy.NewUpgradeAwareHandler(r.URL, f, false, false, f)
	h.UseRequestLocation = true
	h.ServeHTTP(w, r)
}

// upgrade forwards a request that upgrades its connection, and copies between both connections until one of them, or the server, ends.
func (f *forwarding) upgrade(w http.ResponseWriter, r *http.Request, end context.Context) {
	ctx, bounded, stop := egress.BoundUpgrade(r.Context(), w)
	defer stop()
	h := utilproxy.NewUpgradeAwareHandler(r.URL, &http.Transport{
		TLSClientConfig: f.proxy.upgrades, DialContext: egress.Bounded(f.dial),
	}, false, true, f)
	h.UseRequestLocation = true
	h.ServeHTTP(egress.UpgradeUntil(end, bounded), r.WithContext(ctx))
}

// dial connects to the first server that can be reached.
func (f *forwarding) dial(ctx context.Context, network, _ string) (c net.Conn, err error) {
	for _, s := range f.to {
		if c, err = dial(ctx, network, s.Address.String()); err == nil || ctx.Err() != nil {
			break
		}
	}
	return c, err
}

// RoundTrip implements [http.RoundTripper]: a server that cannot be reached gets nothing, so the next one is tried.
func (f *forwarding) RoundTrip(r *http.Request) (resp *http.Response, err error) {
	for _, s := range f.to {
		try := r.WithContext(r.Context())
		to := *r.URL
		to.Host = s.Address.String()
		try.URL, try.Host = &to, to.Host
		if r.Body != nil && r.Body != http.NoBody {
			try.Body = io.NopCloser(r.Body) // the next one gets it unread; who sends the request closes it
		}
		resp, err = f.proxy.transport.RoundTrip(try)
		var refused *net.OpError
		if err == nil || !errors.As(err, &refused) || refused.Op != "dial" || r.Context().Err() != nil {
			break
		}
	}
	return resp, err
}

// Error responds to a request that did not reach the server.
func (f *forwarding) Error(w http.ResponseWriter, r *http.Request, err error) {
	f.proxy.metrics.failed.WithLabelValues("proxy_transport", f.of.Group, f.of.Version, f.of.Resource).Inc()
	f.proxy.o.Log.ErrorContext(r.Context(), "Could not forward a request to another server", "server", f.to[0].ID, "error", err)
	http.Error(w, err.Error(), http.StatusServiceUnavailable)
}

// coded remembers the status code of a response.
type coded struct {
	http.ResponseWriter
	code int
}

// Unwrap lets http.ResponseController reach the connection.
func (c *coded) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// Hijack implements [http.Hijacker]. A proxy calls it for a server that has upgraded the connection, or refused to.
func (c *coded) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c.code = http.StatusSwitchingProtocols
	return http.NewResponseController(c.ResponseWriter).Hijack()
}

// WriteHeader implements [http.ResponseWriter].
func (c *coded) WriteHeader(code int) {
	c.code = code
	c.ResponseWriter.WriteHeader(code)
}
