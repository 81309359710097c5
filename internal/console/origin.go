// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// pageHeader is the header of the page's writes. A page of another origin cannot set it without the server's consent, which it never gives.
const pageHeader = "X-Mortise-Console"

// place is where the browser sees the console.
type place struct {
	host   string // HOST or HOST:PORT
	prefix string // of the paths, that a proxy adds: "" or /PATH
}

// root is the path of the page as the browser sees it.
func (p *place) root() string { return p.prefix + Root }

func (p *place) origin() string { return "https://" + p.host }

// placeOf returns where the browser of a request sees the console. It refuses a host that is not the server's: a page of another site,
// whose name resolves to this server, shares no origin with the console.
func (c *Console) placeOf(r *http.Request) (*place, error) {
	p := &place{host: r.Host}
	if forwarded := r.Header.Get("X-Forwarded-Host"); forwarded != "" {
		first, _, _ := strings.Cut(forwarded, ",")
		p.host = strings.TrimSpace(first)
	}
	for _, host := range []string{r.Host, p.host} {
		if !c.hostAllowed(host) {
			return nil, newStatus(http.StatusMisdirectedRequest,
				"the console is not served under the host of this request: use an address or a name of the serving certificate, "+
					"or name the host with --console-hosts")
		}
	}
	if prefix := r.Header.Get("X-Forwarded-Prefix"); prefix != "" {
		prefix = strings.TrimSuffix(prefix, "/")
		if !validPrefix(prefix) {
			return nil, newStatus(http.StatusBadRequest, "X-Forwarded-Prefix is not a path of letters, digits and . _ ~ -")
		}
		p.prefix = prefix
	}
	return p, nil
}

// hostAllowed reports whether clients may address the server by HOST or HOST:PORT.
func (c *Console) hostAllowed(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if name == "" || strings.ContainsFunc(name, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.' && c != '_'
	}) {
		return false
	}
	return name == "localhost" || c.host(name)
}

// validPrefix reports whether a prefix is "" or /SEGMENT/SEGMENT..., and safe in HTML and in a cookie.
func validPrefix(prefix string) bool {
	if prefix == "" {
		return true
	}
	if len(prefix) > 256 || prefix[0] != '/' {
		return false
	}
	for segment := range strings.SplitSeq(prefix[1:], "/") {
		if segment == "" || segment == "." || segment == ".." || strings.ContainsFunc(segment, func(c rune) bool {
			return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("._~-", c)
		}) {
			return false
		}
	}
	return true
}

// check refuses a request that another site may have sent with the user's cookie.
func (p *place) check(r *http.Request, kind requestKind) error {
	site, origin, from := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin"), r.Header.Get("Sec-Fetch-Dest")
	if kind == navigateKind {
		return nil
	}
	if from != "" && from != "empty" && from != "websocket" {
		return forbidden("the console answers this path to fetch and to WebSockets alone, not to a " + from)
	}
	own := strings.EqualFold(origin, p.origin())
	switch {
	case origin == "null":
		return forbidden("the request comes from a page without an origin")
	case site == "same-origin":
	case site == "none" && kind == readKind: // typed by the user
	case site != "":
		return forbidden("the request comes from another site")
	case origin != "" && !own:
		return forbidden("the request comes from another origin")
	case origin == "" && (kind == writeKind || kind == socketKind):
		return forbidden("the request does not say that the console's page sent it: it has neither Sec-Fetch-Site nor Origin")
	}
	if (kind == writeKind || kind == ownKind) && r.Header.Get(pageHeader) != "1" {
		return forbidden("the request lacks the header " + pageHeader + ": 1")
	}
	return nil
}

// protect sets the headers of all responses of the console.
func protect(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "+
		"connect-src 'self'; font-src 'self'; frame-ancestors 'none'; base-uri 'self'; form-action 'self'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}
