// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
)

// provider is an issuer of ID tokens.
type provider struct {
	t      *testing.T
	server *httptest.Server

	mu        sync.Mutex
	asked     url.Values // of the newest sign-in
	nonce     string     // in the ID token; empty: the one asked for
	issuer    string     // in the ID token and the configuration; empty: its own
	endpoints string     // of the configuration; empty: its own
	issued    map[string]bool
}

func newProvider(t *testing.T) *provider {
	p := &provider{t: t, issued: map[string]bool{}}
	p.server = httptest.NewTLSServer(p)
	t.Cleanup(p.server.Close)
	return p
}

// change changes what the provider answers from now on.
func (p *provider) change(nonce, issuer, endpoints string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nonce, p.issuer, p.endpoints = nonce, issuer, endpoints
}

// ServeHTTP serves the configuration and the token endpoint.
func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := func(with string) string {
		if with == "" {
			return p.server.URL
		}
		return with
	}
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		writeJSON(w, http.StatusOK, map[string]any{
			"issuer": own(p.issuer), "authorization_endpoint": own(p.endpoints) + "/authorize", "token_endpoint": own(p.endpoints) + "/token",
			"scopes_supported": []string{"openid", "email"},
		})
	case "/token":
		sum := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
		if r.PostFormValue("code") != "the-code" || r.PostFormValue("client_id") != "mortise" ||
			base64.RawURLEncoding.EncodeToString(sum[:]) != p.asked.Get("code_challenge") ||
			r.PostFormValue("redirect_uri") != p.asked.Get("redirect_uri") {
			writeJSON(w, http.StatusBadRequest, map[string]string{"error": "invalid_grant"})
			return
		}
		nonce := p.asked.Get("nonce")
		if p.nonce != "" {
			nonce = p.nonce
		}
		claims := fmt.Sprintf(`{"iss":%q,"nonce":%q,"exp":4000000000}`, own(p.issuer), nonce)
		token := "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".sig"
		p.issued[token] = true
		writeJSON(w, http.StatusOK, map[string]string{"access_token": "a", "token_type": "Bearer", "id_token": token})
	default:
		http.NotFound(w, r)
	}
}

// Authenticate accepts the tokens that the provider has issued.
func (p *provider) Authenticate(r *http.Request) (user.Info, error) {
	token, _ := bearer(r)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.issued[token] {
		return nil, fmt.Errorf("unknown token %q", token)
	}
	return &user.DefaultInfo{Name: "jane", Groups: []string{user.AllAuthenticated}}, nil
}

// TestSignInAtIssuer goes through sign-ins at an issuer, honest and not.
func TestSignInAtIssuer(t *testing.T) {
	p := newProvider(t)
	f := newFixture(t, func(o *Options) {
		o.Authenticator = p
		o.Issuers = func() []Issuer { return []Issuer{{URL: p.server.URL, ClientID: "mortise", Client: p.server.Client()}} }
	})
	text := f.wantCode("methods", http.StatusUnauthorized, http.MethodGet, "/console/api/session", "")
	if !strings.Contains(text, `"methods":["code","token","oidc"]`) || !strings.Contains(text, p.server.URL) {
		t.Errorf("one can sign in by %s", text)
	}
	// begin begins a sign-in, and returns the cookie and the state.
	begin := func() (cookie, state string) {
		t.Helper()
		resp, body := f.send(http.MethodGet, "/console/api/oidc/login?issuer="+url.QueryEscape(p.server.URL), "",
			"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Dest", "document", "X-Forwarded-Prefix", "/team")
		to, err := url.Parse(resp.Header.Get("Location"))
		if err != nil || resp.StatusCode != http.StatusSeeOther || to.Path != "/authorize" {
			t.Fatalf("the sign-in begins with %d %s %s", resp.StatusCode, resp.Header.Get("Location"), body)
		}
		p.mu.Lock()
		p.asked = to.Query()
		p.mu.Unlock()
		for name, want := range map[string]string{
			"client_id": "mortise", "response_type": "code", "code_challenge_method": "S256", "scope": "openid email",
			"redirect_uri": f.server.URL + "/team/console/api/oidc/callback",
		} {
			if got := to.Query().Get(name); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
		c := resp.Cookies()
		if len(c) != 1 || c[0].SameSite != http.SameSiteLaxMode || !c[0].HttpOnly || !c[0].Secure || c[0].Path != "/team/console/api/oidc/" {
			t.Errorf("cookies are %v", c)
		}
		return cookieHeader(resp), to.Query().Get("state")
	}
	// end comes back from the issuer, and returns where the browser goes and its cookie.
	end := func(cookie, query string) (to, session string) {
		t.Helper()
		resp, body := f.send(http.MethodGet, "/console/api/oidc/callback?"+query, "", "Cookie", cookie, "X-Forwarded-Prefix", "/team",
			"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "document")
		if resp.StatusCode != http.StatusSeeOther {
			t.Fatalf("the sign-in ends with %d %s", resp.StatusCode, body)
		}
		for _, c := range resp.Cookies() {
			if c.Name == f.console.sessions.cookieOf(0) {
				session = c.Name + "=" + c.Value
			}
		}
		return resp.Header.Get("Location"), session
	}

	cookie, state := begin()
	to, session := end(cookie, "code=the-code&state="+state)
	if to != "/team/console/" || session == "" {
		t.Fatalf("the sign-in ends at %s", to)
	}
	text = f.wantCode("session", http.StatusOK, http.MethodGet, "/console/api/session", "", "Cookie", session)
	if !strings.Contains(text, `"username":"jane"`) {
		t.Errorf("the session is %s", text)
	}

	for what, c := range map[string]struct{ query, nonce, issuer, endpoints string }{
		"another state":   {query: "code=the-code&state=x"},
		"no state":        {query: "code=the-code"},
		"a refusal":       {query: "error=access_denied&state=STATE"},
		"another code":    {query: "code=another&state=STATE"},
		"another nonce":   {query: "code=the-code&state=STATE", nonce: "x"},
		"another issuer":  {query: "code=the-code&state=STATE", issuer: "https://evil.example"},
		"plain endpoints": {query: "code=the-code&state=STATE", endpoints: "http://evil.example"},
	} {
		cookie, state := begin()
		p.change(c.nonce, c.issuer, c.endpoints)
		to, session := end(cookie, strings.ReplaceAll(c.query, "STATE", state))
		if !strings.HasPrefix(to, "/team/console/#error=") || session != "" {
			t.Errorf("%s: the sign-in ends at %s with the session %q", what, to, session)
		}
		p.change("", "", "")
	}
	_, state = begin()
	if to, session := end("", "code=the-code&state="+state); !strings.Contains(to, "#error=") || session != "" {
		t.Errorf("without the cookie the sign-in ends at %s", to)
	}
	cookie, state = begin()
	f.pass(signInLife)
	if to, session := end(cookie, "code=the-code&state="+state); !strings.Contains(to, "#error=") || session != "" {
		t.Errorf("after a long time the sign-in ends at %s", to)
	}
	resp, _ := f.send(http.MethodGet, "/console/api/oidc/login?issuer=https://evil.example", "")
	if to := resp.Header.Get("Location"); !strings.HasPrefix(to, "/console/#error=") {
		t.Errorf("at an unknown issuer the browser is sent to %s", to)
	}
	var out signedOut
	if err := json.Unmarshal([]byte(f.wantCode("an ID token in place of a session", http.StatusUnauthorized, http.MethodGet,
		"/console/api/session", "", "Cookie", f.console.sessions.cookieOf(0)+"="+cookie[strings.Index(cookie, "=")+1:])), &out); err != nil {
		t.Fatal(err)
	}
}
