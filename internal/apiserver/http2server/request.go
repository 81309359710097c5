// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package http2server

import (
	"context"
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
)

// headers begins a request, or ends its body with trailers.
func (r *reader) headers(ctx context.Context, f *http2.MetaHeadersFrame) error {
	c := r.conn
	id := f.StreamID
	if id%2 == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if id <= c.last { // which this goroutine alone raises
		c.mu.Lock()
		defer c.mu.Unlock()
		if st := c.streams[id]; st != nil {
			return st.trailers(f)
		}
		return http2.ConnectionError(http2.ErrCodeStreamClosed)
	}
	st := &stream{conn: c, id: id, remoteClosed: f.StreamEnded()}
	malformed := st.request(ctx, f)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last, c.idle.frames = id, 0
	if malformed != nil {
		return malformed
	}
	if c.err != nil { // a write has failed: nothing would end the stream
		st.cancel()
		return c.err
	}
	if len(c.streams) >= c.server.o.Streams {
		st.cancel()
		code := http2.ErrCodeRefusedStream
		if c.unacked == 0 {
			code = http2.ErrCodeProtocol // the client knows the limit
		}
		return http2.StreamError{StreamID: id, Code: code}
	}
	st.window = int64(c.out.initial)
	c.streams[id] = st
	if c.running < c.server.o.Streams {
		c.running++
		r.starts = append(r.starts, st)
		return nil
	}
	if len(c.queue) >= queuedPerStream*c.server.o.Streams {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	c.queue = append(c.queue, st)
	return nil
}

// request makes the request of a block of header fields.
func (st *stream) request(ctx context.Context, f *http2.MetaHeadersFrame) error {
	malformed := http2.StreamError{StreamID: st.id, Code: http2.ErrCodeProtocol}
	if f.HasPriority() && f.Priority.StreamDep == st.id {
		return malformed
	}
	pseudo := f.PseudoFields()
	var method, scheme, path, authority, protocol string
	for _, p := range pseudo {
		switch p.Name {
		case ":method":
			method = p.Value
		case ":scheme":
			scheme = p.Value
		case ":path":
			path = p.Value
		case ":authority":
			authority = p.Value
		default:
			protocol = p.Name // :protocol is for a setting that was not sent
		}
	}
	connect := method == http.MethodConnect
	switch {
	case protocol != "":
		return malformed
	case connect && (path != "" || scheme != "" || authority == ""):
		return malformed
	case !connect && (method == "" || path == "" || scheme != "https" && scheme != "http"):
		return malformed
	}
	regular := f.RegularFields()
	r := &http.Request{
		Method: method, Proto: "HTTP/2.0", ProtoMajor: 2, RequestURI: path, RemoteAddr: st.conn.remote, TLS: st.conn.state,
		Header: make(http.Header, len(regular)), Host: authority,
	}
	values := make([]string, len(regular)) // of all fields, for most have one
	st.body.declared = -1
	for _, h := range regular {
		switch h.Name {
		case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade":
			return malformed
		case "te":
			if h.Value != "trailers" {
				return malformed
			}
		case "content-length":
			n, err := strconv.ParseUint(h.Value, 10, 63)
			if err != nil || st.body.declared >= 0 && st.body.declared != int64(n) {
				return malformed
			}
			st.body.declared = int64(n)
		}
		name := canonical(h.Name)
		if had := r.Header[name]; had != nil {
			if name == "Cookie" {
				had[0] += "; " + h.Value
				continue
			}
			r.Header[name] = append(had, h.Value)
			continue
		}
		values[0] = h.Value
		r.Header[name], values = values[:1:1], values[1:]
	}
	if r.Host == "" {
		r.Host = r.Header.Get("Host")
	}
	delete(r.Header, "Host")
	var err error
	if connect {
		r.URL, r.RequestURI = &url.URL{Host: authority}, authority
	} else if r.URL, err = url.ParseRequestURI(path); err != nil {
		return malformed
	}
	st.announce(r)
	if f.StreamEnded() {
		if st.body.declared > 0 {
			return malformed
		}
		r.Body = http.NoBody
	} else {
		st.body.window.left = st.conn.server.o.StreamWindow
		r.Body, r.ContentLength = (*bodyReader)(st), st.body.declared
		st.expects = strings.EqualFold(r.Header.Get("Expect"), "100-continue")
		delete(r.Header, "Expect")
	}
	st.tooLarge = f.Truncated
	ctx, st.cancel = context.WithCancel(ctx)
	st.r = r.WithContext(ctx)
	return nil
}

// announce notes the trailers that a request will have.
func (st *stream) announce(r *http.Request) {
	for _, v := range r.Header["Trailer"] {
		for name := range strings.SplitSeq(v, ",") {
			name = http.CanonicalHeaderKey(textproto.TrimString(name))
			switch name {
			case "Transfer-Encoding", "Trailer", "Content-Length":
			default:
				if r.Trailer == nil {
					r.Trailer = http.Header{}
				}
				r.Trailer[name] = nil
			}
		}
	}
	delete(r.Header, "Trailer")
}

// trailers ends the body of a request.
func (st *stream) trailers(f *http2.MetaHeadersFrame) error {
	if st.remoteClosed {
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeStreamClosed}
	}
	if len(f.PseudoFields()) > 0 || !f.StreamEnded() {
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeProtocol}
	}
	if st.body.declared >= 0 && st.body.received != st.body.declared {
		st.body.fail(errBody)
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeProtocol}
	}
	for _, h := range f.RegularFields() {
		name := canonical(h.Name)
		if !httpguts.ValidTrailerHeader(name) {
			return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeProtocol}
		}
		if _, announced := st.r.Trailer[name]; announced {
			st.body.trailer = append(st.body.trailer, [2]string{name, h.Value})
		}
	}
	st.endRemote()
	return nil
}

// canonical returns the name of a header field as [http.Header] has it.
func canonical(name string) string {
	if known, ok := canonicalNames[name]; ok {
		return known
	}
	return http.CanonicalHeaderKey(name)
}

// lower returns the name of a header field as HTTP/2 has it.
func lower(name string) string {
	if known, ok := lowerNames[name]; ok {
		return known
	}
	return strings.ToLower(name)
}

var canonicalNames, lowerNames = func() (up, down map[string]string) {
	up, down = map[string]string{}, map[string]string{}
	for _, name := range []string{
		"accept", "accept-encoding", "accept-language", "authorization", "content-type", "content-length", "content-encoding", "user-agent",
		"cache-control", "date", "vary", "cookie", "host", "expect", "trailer", "origin", "referer", "traceparent", "tracestate", "baggage",
		"audit-id", "warning", "etag", "last-modified", "location", "retry-after", "allow", "set-cookie", "www-authenticate",
		"x-content-type-options", "x-forwarded-for", "x-requested-with", "if-none-match", "kubectl-command", "kubectl-session",
		"x-kubernetes-pf-flowschema-uid", "x-kubernetes-pf-prioritylevel-uid", "impersonate-user", "impersonate-group",
	} {
		c := http.CanonicalHeaderKey(name)
		up[name], down[c] = c, name
	}
	return up, down
}()
