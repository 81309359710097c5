// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticate

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Headers are those by which a front proxy names the user.
type Headers struct{ Username, UID, Group, ExtraPrefixes []string }

// standardHeaders never reach what comes after authentication.
var standardHeaders = Headers{
	Username: []string{"X-Remote-User"}, UID: []string{"X-Remote-Uid"}, Group: []string{"X-Remote-Group"},
	ExtraPrefixes: []string{"X-Remote-Extra-"},
}

// StandardHeaders are the headers that the server sends to aggregated API servers.
func StandardHeaders() Headers { return standardHeaders }

// FrontProxy believes the headers of a proxy that shows a certificate of the authorities.
type FrontProxy struct {
	Authorities *Bundle
	Names       []string // common names of the proxies; none: all
	Headers     Headers
}

func (f *FrontProxy) authenticator(now func() time.Time) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || first(r.Header, f.Headers.Username) == "" {
			return nil, false, nil // without a name it does not matter whose certificate it is
		}
		if _, err := verify(r, f.Authorities.Pool(), now()); err != nil {
			return nil, false, err
		}
		if cn := r.TLS.PeerCertificates[0].Subject.CommonName; len(f.Names) > 0 && !slices.Contains(f.Names, cn) {
			return nil, false, fmt.Errorf("x509: subject with cn=%s is not in the allowed list", cn) // upstream's words
		}
		who := &user.DefaultInfo{Name: first(r.Header, f.Headers.Username), UID: first(r.Header, f.Headers.UID), Groups: []string{},
			Extra: map[string][]string{}}
		for _, h := range f.Headers.Group {
			for _, g := range r.Header.Values(h) {
				if g != "" {
					who.Groups = append(who.Groups, g)
				}
			}
		}
		for _, prefix := range f.Headers.ExtraPrefixes {
			for name, values := range r.Header {
				if !hasPrefix(name, prefix) {
					continue
				}
				key := strings.ToLower(name[len(prefix):])
				if plain, err := url.PathUnescape(key); err == nil {
					key = plain
				}
				who.Extra[key] = append(who.Extra[key], values...)
			}
		}
		clearHeaders(r.Header, f.Headers)
		return &authenticator.Response{User: who}, true, nil
	})
}

func first(h http.Header, names []string) string {
	for _, n := range names {
		if v := h.Get(n); v != "" {
			return v
		}
	}
	return ""
}

func hasPrefix(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// hasRemote reports whether a header may be one of the standard ones, so that most requests need no closer look.
func hasRemote(h http.Header) bool {
	for name := range h {
		if hasPrefix(name, "X-Remote-") {
			return true
		}
	}
	return false
}

func clearHeaders(h http.Header, of Headers) {
	for _, names := range [][]string{of.Username, of.UID, of.Group} {
		for _, n := range names {
			h.Del(n)
		}
	}
	for _, prefix := range of.ExtraPrefixes {
		for name := range h {
			if hasPrefix(name, prefix) {
				delete(h, name)
			}
		}
	}
}
