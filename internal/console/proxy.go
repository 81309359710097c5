// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bufio"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// cluster passes a request to the API as the session's user.
func (c *Console) cluster(w http.ResponseWriter, r *http.Request, at *place, path string) {
	kind := writeKind
	switch {
	case upgrades(r):
		kind = socketKind
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		kind = readKind
	}
	if err := at.check(r, kind); err != nil {
		writeError(w, err)
		return
	}
	s := c.sessions.of(r)
	if s == nil {
		w.Header().Set("Cache-Control", "no-store")
		writeError(w, newStatus(http.StatusUnauthorized, "sign in first"))
		return
	}
	in := s.as(r, forwarded(r.Header))
	in.URL = &url.URL{Path: path, RawQuery: r.URL.RawQuery}
	if raw, ok := strings.CutPrefix(r.URL.RawPath, Root+"cluster"); ok {
		in.URL.RawPath = raw
	}
	in.RequestURI = in.URL.RequestURI()
	c.api.ServeHTTP(&sandboxed{ResponseWriter: w}, in)
}

// upgrades reports whether a request asks for another protocol on its connection.
func upgrades(r *http.Request) bool {
	for _, line := range r.Header["Connection"] {
		for token := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(token), "upgrade") {
				return true
			}
		}
	}
	return false
}

// forwarded returns the headers of a request for the API: without cookies, those of the console and the browser, and those by which a proxy
// would name a user.
func forwarded(h http.Header) http.Header {
	out := make(http.Header, len(h))
	for name, values := range h {
		switch {
		case name == "Cookie", name == "Authorization", name == pageHeader, name == "Referer",
			strings.HasPrefix(name, "Sec-Fetch-"), strings.HasPrefix(name, "X-Remote-"),
			name == "X-Forwarded-Prefix", name == "Service-Worker":
		default:
			out[name] = values
		}
	}
	return out
}

// sandboxed is a response of the API, or of what is behind it. The browser must not run it as a part of the console.
type sandboxed struct {
	http.ResponseWriter
	sent bool
}

// guard removes what a pod could change of the console's state in the browser.
func (s *sandboxed) guard() {
	if s.sent {
		return
	}
	s.sent = true
	h := s.Header()
	for _, name := range []string{"Set-Cookie", "Clear-Site-Data", "Service-Worker-Allowed", "Refresh", "Link", "Strict-Transport-Security"} {
		h.Del(name)
	}
	protect(h)
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox; frame-ancestors 'none'")
}

// WriteHeader implements [http.ResponseWriter].
func (s *sandboxed) WriteHeader(code int) {
	if code >= http.StatusOK || code == http.StatusSwitchingProtocols {
		s.guard()
	}
	s.ResponseWriter.WriteHeader(code)
}

// Write implements [http.ResponseWriter].
func (s *sandboxed) Write(p []byte) (int, error) {
	s.guard()
	return s.ResponseWriter.Write(p)
}

// Flush sends buffered data.
func (s *sandboxed) Flush() {
	s.guard()
	_ = http.NewResponseController(s.ResponseWriter).Flush()
}

// Hijack takes the connection over.
func (s *sandboxed) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(s.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	conn, rw = linger(conn, rw)
	return conn, rw, nil
}

// Unwrap lets http.ResponseController reach the connection.
func (s *sandboxed) Unwrap() http.ResponseWriter { return s.ResponseWriter }
