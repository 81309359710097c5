// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/oauth2"
)

// Issuer is an issuer of ID tokens at which users sign in.
type Issuer struct {
	URL string
	// DiscoveryURL is where its configuration is; empty: below URL.
	DiscoveryURL string
	// ClientID is this cluster's, as a public client.
	ClientID string
	// Client makes requests to the issuer.
	Client *http.Client
}

// Issuers returns the issuers of the current configuration.
type Issuers func() []Issuer

// signIns are the sign-ins at issuers.
type signIns struct{ of Issuers }

func (s *signIns) all() []Issuer {
	if s.of == nil {
		return nil
	}
	return s.of()
}

// names returns the URLs of the issuers.
func (s *signIns) names() []string {
	out := []string{}
	for _, i := range s.all() {
		out = append(out, i.URL)
	}
	return out
}

// find returns the issuer with a URL.
func (s *signIns) find(issuer string) (Issuer, bool) {
	all := s.all()
	i := slices.IndexFunc(all, func(i Issuer) bool { return i.URL == issuer })
	if i < 0 {
		return Issuer{}, false
	}
	return all[i], true
}

// Bounds of a sign-in at an issuer.
const (
	signInLife     = 10 * time.Minute // from the redirect to the issuer to the return
	discoveryBytes = 1 << 20
)

// signInState is what a browser keeps while the user signs in at an issuer, sealed.
type signInState struct {
	Issuer   string    `json:"issuer"`
	State    string    `json:"state"`
	Nonce    string    `json:"nonce"`
	Verifier string    `json:"verifier"` // of PKCE
	Expires  time.Time `json:"expires"`
}

func (c *Console) signInCookie(at *place, value string, age int) *http.Cookie {
	return &http.Cookie{
		Name: cookieName + c.sessions.sealer.name + "-sign-in", Value: value, Path: at.root() + "api/oidc/", MaxAge: age,
		Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode, // the issuer's redirect comes from another site
	}
}

// beginOIDC redirects to an issuer.
func (c *Console) beginOIDC(w http.ResponseWriter, r *http.Request, at *place) {
	issuer, ok := c.issuers.find(r.URL.Query().Get("issuer"))
	if !ok {
		c.failSignIn(w, r, at, "the cluster does not accept tokens of this issuer")
		return
	}
	config, err := issuer.discover(r.Context(), at)
	if err != nil {
		c.log.WarnContext(r.Context(), "Could not begin a sign-in at an issuer", "issuer", issuer.URL, "error", err)
		c.failSignIn(w, r, at, "the issuer "+issuer.URL+" does not say how to sign in: the server's log has the reason")
		return
	}
	s := signInState{
		Issuer: issuer.URL, State: oauth2.GenerateVerifier(), Nonce: oauth2.GenerateVerifier(), Verifier: oauth2.GenerateVerifier(),
		Expires: c.now().Add(signInLife),
	}
	content, err := json.Marshal(&s)
	if err != nil {
		writeError(w, err)
		return
	}
	http.SetCookie(w, c.signInCookie(at, c.sessions.sealer.seal(forSignIn, content), int(signInLife.Seconds())))
	to := config.AuthCodeURL(s.State, oauth2.S256ChallengeOption(s.Verifier), oauth2.SetAuthURLParam("nonce", s.Nonce))
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// endOIDC takes the user back from an issuer, and begins the session.
func (c *Console) endOIDC(w http.ResponseWriter, r *http.Request, at *place) {
	http.SetCookie(w, c.signInCookie(at, "", -1)) // one try
	query := r.URL.Query()
	state, ok := c.signInOf(r)
	if !ok || subtle.ConstantTimeCompare([]byte(state.State), []byte(query.Get("state"))) != 1 {
		c.failSignIn(w, r, at, "this browser did not begin the sign-in, or it took too long")
		return
	}
	if refused := query.Get("error"); refused != "" {
		c.failSignIn(w, r, at, "the issuer refused the sign-in: "+refused)
		return
	}
	issuer, ok := c.issuers.find(state.Issuer)
	if !ok {
		c.failSignIn(w, r, at, "the cluster does not accept tokens of this issuer any more")
		return
	}
	s, err := c.exchange(r.Context(), &issuer, at, state, query.Get("code"))
	if err == nil {
		err = c.sessions.begin(w, at, s)
	}
	if err != nil {
		c.log.WarnContext(r.Context(), "Could not end a sign-in at an issuer", "issuer", issuer.URL, "error", err)
		c.failSignIn(w, r, at, "the sign-in at "+issuer.URL+" did not succeed: the server's log has the reason")
		return
	}
	c.log.InfoContext(r.Context(), "A user signed in to the console", "source", r.RemoteAddr, "issuer", issuer.URL)
	http.Redirect(w, r, at.root(), http.StatusSeeOther)
}

// failSignIn sends the browser back to the page, which shows why.
func (c *Console) failSignIn(w http.ResponseWriter, r *http.Request, at *place, why string) {
	http.Redirect(w, r, at.root()+"#error="+url.QueryEscape(why[:min(len(why), 500)]), http.StatusSeeOther)
}

// signInOf returns the sign-in that a browser has begun.
func (c *Console) signInOf(r *http.Request) (*signInState, bool) {
	cookie, err := r.Cookie(cookieName + c.sessions.sealer.name + "-sign-in")
	if err != nil {
		return nil, false
	}
	content, ok := c.sessions.sealer.open(forSignIn, cookie.Value)
	if !ok {
		return nil, false
	}
	s := &signInState{}
	if err := json.Unmarshal(content, s); err != nil || s.State == "" || !c.now().Before(s.Expires) {
		return nil, false
	}
	return s, true
}

// exchange gets the ID token for the code that the issuer gave the browser, and makes a session of it.
func (c *Console) exchange(ctx context.Context, issuer *Issuer, at *place, state *signInState, code string) (*session, error) {
	config, err := issuer.discover(ctx, at)
	if err != nil {
		return nil, err
	}
	got, err := config.Exchange(context.WithValue(ctx, oauth2.HTTPClient, issuer.Client), code, oauth2.VerifierOption(state.Verifier))
	if err != nil {
		var refused *oauth2.RetrieveError
		if errors.As(err, &refused) {
			return nil, fmt.Errorf("exchange code: the issuer answered %d %s", refused.Response.StatusCode, refused.ErrorCode)
		}
		return nil, fmt.Errorf("exchange code: %w", err)
	}
	token, _ := got.Extra("id_token").(string)
	if token == "" {
		return nil, errors.New("exchange code: the issuer's answer has no ID token")
	}
	s, err := c.users.tokenSession(ctx, token) // the API verifies its signature, issuer, audience and times
	if err != nil {
		return nil, err
	}
	claims, err := claimsOf(token)
	switch {
	case err != nil:
		return nil, err
	case claims.Issuer != issuer.URL:
		return nil, errors.New("the ID token is of another issuer")
	case subtle.ConstantTimeCompare([]byte(claims.Nonce), []byte(state.Nonce)) != 1:
		return nil, errors.New("the ID token is not of this sign-in")
	}
	return s, nil
}

// idClaims are the claims of an ID token that the API does not check.
type idClaims struct {
	Issuer string `json:"iss"`
	Nonce  string `json:"nonce"`
}

// claimsOf reads the claims of a token whose signature was verified.
func claimsOf(token string) (c idClaims, err error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return c, errors.New("the ID token is no JWT")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err == nil {
		err = json.Unmarshal(payload, &c)
	}
	if err != nil {
		return c, fmt.Errorf("read ID token: %w", err)
	}
	return c, nil
}

// discover asks an issuer where users sign in.
func (i *Issuer) discover(ctx context.Context, at *place) (*oauth2.Config, error) {
	from := i.DiscoveryURL
	if from == "" {
		from = strings.TrimSuffix(i.URL, "/") + "/.well-known/openid-configuration"
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, from, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("discover: %w", err)
	}
	resp, err := i.Client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("discover: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, discoveryBytes))
	if err != nil {
		return nil, fmt.Errorf("discover: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("discover: the issuer answered %d", resp.StatusCode)
	}
	var found struct {
		Issuer        string   `json:"issuer"`
		Authorization string   `json:"authorization_endpoint"`
		Token         string   `json:"token_endpoint"`
		Scopes        []string `json:"scopes_supported"`
	}
	if err := json.Unmarshal(body, &found); err != nil {
		return nil, fmt.Errorf("discover: %w", err)
	}
	if found.Issuer != i.URL {
		return nil, errors.New("discover: the configuration is of another issuer")
	}
	for _, endpoint := range []string{found.Authorization, found.Token} {
		if u, err := url.Parse(endpoint); err != nil || u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("discover: the endpoint %q is no https URL", endpoint)
		}
	}
	config := &oauth2.Config{
		ClientID: i.ClientID, RedirectURL: at.origin() + at.root() + "api/oidc/callback", Scopes: []string{"openid"},
		Endpoint: oauth2.Endpoint{AuthURL: found.Authorization, TokenURL: found.Token, AuthStyle: oauth2.AuthStyleInParams},
	}
	for _, more := range []string{"profile", "email", "groups"} { // claims that configurations map to users and groups
		if slices.Contains(found.Scopes, more) {
			config.Scopes = append(config.Scopes, more)
		}
	}
	return config, nil
}
