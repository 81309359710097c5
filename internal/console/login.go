// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// signedOut is the answer to who is not signed in: a Status, and how to sign in.
type signedOut struct {
	metav1.Status `json:",inline"`
	Methods       []string `json:"methods"`
	Issuers       []string `json:"issuers"`
}

// signedIn is the answer to who is signed in.
type signedIn struct {
	User    *person   `json:"user"`
	Expires time.Time `json:"expires"`
	Method  string    `json:"method"`
}

// session answers who is signed in.
func (c *Console) session(w http.ResponseWriter, r *http.Request, _ *place) {
	s := c.sessions.of(r)
	if s != nil {
		who, err := c.users.who(r.Context(), s)
		if err == nil {
			method := "token"
			if s.User != nil {
				method = "user"
			}
			p := personOf(who)
			p.Extra = nil
			writeJSON(w, http.StatusOK, &signedIn{User: p, Expires: s.Expires.UTC().Truncate(time.Second), Method: method})
			return
		}
	}
	out := signedOut{
		Status: statusOf(http.StatusUnauthorized, "sign in first"), Methods: []string{"code", "token"}, Issuers: c.issuers.names(),
	}
	if len(out.Issuers) > 0 {
		out.Methods = append(out.Methods, "oidc")
	}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		out.Methods = append(out.Methods, "certificate")
	}
	writeJSON(w, http.StatusUnauthorized, &out)
}

// credentials are the body of a sign-in.
type credentials struct {
	Code  string `json:"code"`
	Token string `json:"token"`
}

// login signs in by a one-time code or a bearer token.
func (c *Console) login(w http.ResponseWriter, r *http.Request, at *place) {
	var given credentials
	if err := readJSON(w, r, &given); err != nil {
		writeError(w, err)
		return
	}
	if (given.Code == "") == (given.Token == "") {
		writeError(w, newStatus(http.StatusBadRequest, "the body must have either a code or a token"))
		return
	}
	if given.Code != "" {
		s, ok := c.codes.take(given.Code)
		if !ok {
			writeError(w, newStatus(http.StatusUnauthorized,
				"the code is unknown, was used already, or is too old: run `mortise console` for another one"))
			return
		}
		c.signIn(w, r, at, s)
		return
	}
	s, err := c.users.tokenSession(r.Context(), strings.TrimSpace(given.Token))
	if err != nil {
		writeError(w, err)
		return
	}
	c.signIn(w, r, at, s)
}

// signIn begins a session and answers that it did.
func (c *Console) signIn(w http.ResponseWriter, r *http.Request, at *place, s *session) {
	if err := c.sessions.begin(w, at, s); err != nil {
		writeError(w, err)
		return
	}
	c.log.InfoContext(r.Context(), "A user signed in to the console", "source", r.RemoteAddr, "token", s.User == nil)
	w.WriteHeader(http.StatusNoContent)
}

// logout ends the session in this browser.
func (c *Console) logout(w http.ResponseWriter, r *http.Request, at *place) {
	c.sessions.end(w, r, at)
	w.WriteHeader(http.StatusNoContent)
}

// certificate signs in by the client certificate of the connection.
func (c *Console) certificate(w http.ResponseWriter, r *http.Request, at *place) {
	s, err := c.users.certificateSession(r)
	if err != nil {
		writeError(w, newStatus(http.StatusUnauthorized, "the connection has no client certificate of a user of this cluster"))
		return
	}
	c.signIn(w, r, at, s)
}

// makeCode makes a one-time code for the user of the request's own credentials.
func (c *Console) makeCode(w http.ResponseWriter, r *http.Request, _ *place) {
	for name := range r.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			writeError(w, newStatus(http.StatusBadRequest, "a code is for the user of the credentials: impersonate in the console"))
			return
		}
	}
	s, err := c.users.ownSession(r)
	if err != nil {
		writeError(w, err)
		return
	}
	code, expires, ok := c.codes.make(s)
	if !ok {
		w.Header().Set("Retry-After", "60")
		writeError(w, newStatus(http.StatusTooManyRequests, "too many codes wait to be used"))
		return
	}
	writeJSON(w, http.StatusCreated, &madeCode{Code: code, Expires: expires.UTC()})
}

// madeCode is a one-time code as JSON.
type madeCode struct {
	Code    string    `json:"code"`
	Expires time.Time `json:"expires"`
}
