// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
)

// SameOriginClient is a client for servers that get credentials or secrets: a redirect to another scheme, host or port is
// an error. The transports of client-go add a client's credentials to every request, and a redirect with code 307 or 308
// sends the body again.
func SameOriginClient(c *http.Client) *http.Client {
	own := *c
	own.CheckRedirect = func(r *http.Request, via []*http.Request) error {
		if len(via) >= 10 {
			return errors.New("stopped after 10 redirects") // net/http's words
		}
		return leaves(via[len(via)-1].URL, r.URL)
	}
	return &own
}

// SameOrigin is a transport that does the same, for where the client is made by others.
func SameOrigin(next http.RoundTripper) http.RoundTripper { return sameOrigin{next} }

// leaves is the error of a redirect to another server.
func leaves(from, to *url.URL) error {
	if from.Scheme == to.Scheme && from.Host == to.Host {
		return nil
	}
	return fmt.Errorf("redirect to %s://%s is not followed: it is another server", to.Scheme, to.Host)
}

type sameOrigin struct{ next http.RoundTripper }

// RoundTrip sends a request, unless it is of a redirect that leads elsewhere.
func (s sameOrigin) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Response != nil { // the redirect
		from := &url.URL{}
		if r.Response.Request != nil {
			from = r.Response.Request.URL
		}
		if err := leaves(from, r.URL); err != nil {
			if r.Body != nil {
				_ = r.Body.Close() // as a transport must; it was not read
			}
			return nil, err
		}
	}
	return s.next.RoundTrip(r)
}

// WrappedRoundTripper returns the wrapped transport, for callers that unwrap transports.
func (s sameOrigin) WrappedRoundTripper() http.RoundTripper { return s.next }
