// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// sessionLife is the longest life of a session.
const sessionLife = 12 * time.Hour

// The cookies of a session: one, or several for a long token. Browsers keep at least 4,096 bytes of a cookie with its name and attributes.
const (
	cookieName  = "mortise-console-" // followed by the key's name
	cookieBytes = 3500
	mostCookies = 8
)

// The purposes of sealed cookies.
const (
	forSession = "session"
	forSignIn  = "sign-in"
)

// session is whose requests these are: those of a bearer token, or of a user.
type session struct {
	Token   string    `json:"token,omitempty"`
	User    *person   `json:"user,omitempty"` // nil: the token decides, at each request
	Expires time.Time `json:"expires"`
}

// person is a user as JSON.
type person struct {
	Name   string              `json:"username"`
	UID    string              `json:"uid,omitempty"`
	Groups []string            `json:"groups,omitempty"`
	Extra  map[string][]string `json:"extra,omitempty"`
}

func personOf(who user.Info) *person {
	return &person{Name: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: who.GetExtra()}
}

func (p *person) info() user.Info {
	return &user.DefaultInfo{Name: p.Name, UID: p.UID, Groups: p.Groups, Extra: p.Extra}
}

// decodeSession decodes an opened session; false: it is none, or has ended.
func decodeSession(content []byte, now time.Time) (*session, bool) {
	s := &session{}
	if err := json.Unmarshal(content, s); err != nil {
		return nil, false
	}
	if (s.Token == "") == (s.User == nil) || s.User != nil && s.User.Name == "" || !now.Before(s.Expires) {
		return nil, false
	}
	return s, true
}

// sessions are kept by browsers, sealed, in cookies. The server keeps none.
type sessions struct {
	sealer *sealer
	now    func() time.Time
}

// of returns the session of a request's cookies; nil: it has none that is valid.
func (c *sessions) of(r *http.Request) *session {
	text, ok := c.cookies(r)
	if !ok {
		return nil
	}
	content, ok := c.sealer.open(forSession, text)
	if !ok {
		return nil
	}
	s, ok := decodeSession(content, c.now())
	if !ok {
		return nil
	}
	return s
}

// cookieOf is the name of the nth cookie of a session.
func (c *sessions) cookieOf(n int) string {
	if n == 0 {
		return cookieName + c.sealer.name
	}
	return cookieName + c.sealer.name + "-" + strconv.Itoa(n)
}

// cookies joins the sealed text in the cookies of a request. The first begins with their number and a dot.
func (c *sessions) cookies(r *http.Request) (string, bool) {
	first, err := r.Cookie(c.cookieOf(0))
	if err != nil {
		return "", false
	}
	number, text, ok := strings.Cut(first.Value, ".")
	n, err := strconv.Atoi(number)
	if !ok || err != nil || n < 1 || n > mostCookies {
		return "", false
	}
	for i := 1; i < n; i++ {
		more, err := r.Cookie(c.cookieOf(i))
		if err != nil {
			return "", false
		}
		text += more.Value
	}
	return text, true
}

// begin sets the cookies of a session.
func (c *sessions) begin(w http.ResponseWriter, at *place, s *session) error {
	content, err := json.Marshal(s)
	if err != nil {
		return newStatus(http.StatusInternalServerError, "encode session: "+err.Error())
	}
	text := c.sealer.seal(forSession, content)
	n := (len(text) + cookieBytes - 1) / cookieBytes
	if n > mostCookies {
		return newStatus(http.StatusBadRequest, "the credentials are too long for the cookies of a browser")
	}
	for i := range n {
		part := text[i*cookieBytes : min((i+1)*cookieBytes, len(text))]
		if i == 0 {
			part = strconv.Itoa(n) + "." + part
		}
		http.SetCookie(w, c.cookie(at, i, part, int(s.Expires.Sub(c.now()).Seconds())))
	}
	return nil
}

// end removes the cookies of a session.
func (c *sessions) end(w http.ResponseWriter, r *http.Request, at *place) {
	for i := range mostCookies {
		if _, err := r.Cookie(c.cookieOf(i)); err == nil || i == 0 {
			http.SetCookie(w, c.cookie(at, i, "", -1))
		}
	}
}

func (c *sessions) cookie(at *place, n int, value string, age int) *http.Cookie {
	return &http.Cookie{
		Name: c.cookieOf(n), Value: value, Path: at.root(), MaxAge: age, Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode,
	}
}

// as returns a request to the API by the session's user: with its bearer token, which the API authenticates, or with its user. Other
// credentials of the client do not count. The caller owns the header h.
func (s *session) as(r *http.Request, h http.Header) *http.Request {
	ctx := r.Context()
	h.Del("Authorization")
	if s.User != nil {
		ctx = request.WithUser(ctx, s.User.info())
	} else {
		h.Set("Authorization", "Bearer "+s.Token)
	}
	out := r.WithContext(ctx)
	out.Header = h
	if out.TLS != nil && len(out.TLS.PeerCertificates) > 0 {
		tls := *out.TLS
		tls.PeerCertificates, tls.VerifiedChains = nil, nil
		out.TLS = &tls
	}
	return out
}
