// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// fixture is a console over TLS, in front of an API that answers with what it was asked.
type fixture struct {
	t       *testing.T
	console *Console
	server  *httptest.Server
	client  *http.Client

	mu      sync.Mutex
	offset  time.Duration   // of the console's clock
	revoked map[string]bool // tokens
	watches chan *watchRequest
}

// watchRequest is a watch that the API serves: the test writes its response.
type watchRequest struct {
	*http.Request
	w    http.ResponseWriter
	done chan struct{} // closed by the test
}

// asked is the API's answer.
type asked struct {
	User   string
	Method string
	URI    string
	Header http.Header
	Body   string
}

func (f *fixture) now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Now().Add(f.offset)
}

func (f *fixture) pass(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.offset += d
}

func (f *fixture) revoke(token string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revoked[token] = true
}

// Authenticate implements [Authenticator]. The token of a user is token-NAME.
func (f *fixture) Authenticate(r *http.Request) (user.Info, error) {
	token, ok := bearer(r)
	if !ok {
		return &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}, nil
	}
	name, ok := strings.CutPrefix(token, "token-")
	f.mu.Lock()
	defer f.mu.Unlock()
	if !ok || f.revoked[token] {
		return nil, errors.New("unknown token")
	}
	name, _, _ = strings.Cut(name, "-") // what follows is its length
	return &user.DefaultInfo{Name: name, Groups: []string{user.AllAuthenticated}}, nil
}

// ServeHTTP is the API.
func (f *fixture) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who, ok := request.UserFrom(r.Context())
	if !ok {
		var err error
		if who, err = f.Authenticate(r); err != nil {
			writeError(w, newStatus(http.StatusUnauthorized, "Unauthorized"))
			return
		}
	}
	if r.URL.Query().Get("watch") == "true" {
		q := &watchRequest{Request: r, w: w, done: make(chan struct{})}
		select {
		case f.watches <- q:
		case <-r.Context().Done():
			return
		}
		select {
		case <-q.done:
		case <-r.Context().Done():
		}
		return
	}
	w.Header().Set("Set-Cookie", "evil=1")
	w.Header().Set("Content-Security-Policy", "default-src *")
	body, _ := io.ReadAll(r.Body)
	writeJSON(w, http.StatusOK, &asked{User: who.GetName(), Method: r.Method, URI: r.RequestURI, Header: r.Header, Body: string(body)})
}

func newFixture(t *testing.T, change ...func(*Options)) *fixture {
	t.Helper()
	f := &fixture{t: t, revoked: map[string]bool{}, watches: make(chan *watchRequest)}
	o := Options{API: f, Authenticator: f, Key: Key{1}, Now: f.now, Host: func(name string) bool { return name == "mortise.example.com" }}
	for _, c := range change {
		c(&o)
	}
	var err error
	if f.console, err = New(o); err != nil {
		t.Fatal(err)
	}
	f.server = httptest.NewUnstartedServer(f.console.Before(f))
	f.server.EnableHTTP2 = false
	f.server.StartTLS()
	f.client = f.server.Client()
	f.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	t.Cleanup(func() {
		f.console.sockets.end()
		f.server.Close()
	})
	return f
}

// host is HOST:PORT of the server.
func (f *fixture) host() string { return strings.TrimPrefix(f.server.URL, "https://") }

// send sends a request with headers as KEY, VALUE pairs, and returns the response with its body.
func (f *fixture) send(method, path, body string, header ...string) (*http.Response, string) {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), method, f.server.URL+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
			continue
		}
		r.Header.Add(header[i], header[i+1])
	}
	resp, err := f.client.Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp, string(got)
}

// page are the headers of a write of the page.
func page(cookie string, more ...string) []string {
	h := append([]string{
		"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Dest", "empty", pageHeader, "1", "Content-Type", "application/json",
	}, more...)
	if cookie != "" {
		h = append(h, "Cookie", cookie)
	}
	return h
}

// login signs in and returns the cookies.
func (f *fixture) login(body string) string {
	f.t.Helper()
	resp, text := f.send(http.MethodPost, "/console/api/login", body, page("")...)
	if resp.StatusCode != http.StatusNoContent {
		f.t.Fatalf("sign-in: %d %s", resp.StatusCode, text)
	}
	return cookieHeader(resp)
}

// cookieHeader is the Cookie header of a browser after a response.
func cookieHeader(resp *http.Response) string {
	var all []string
	for _, c := range resp.Cookies() {
		all = append(all, c.Name+"="+c.Value)
	}
	return strings.Join(all, "; ")
}

// code makes a one-time code for the user of a token.
func (f *fixture) code(token string) string {
	f.t.Helper()
	resp, body := f.send(http.MethodPost, "/console/api/codes", "", "Authorization", "Bearer "+token, pageHeader, "1")
	var made madeCode
	if err := json.Unmarshal([]byte(body), &made); err != nil || resp.StatusCode != http.StatusCreated {
		f.t.Fatalf("code: %d %s", resp.StatusCode, body)
	}
	return made.Code
}

func (f *fixture) wantCode(what string, want int, method, path, body string, header ...string) string {
	f.t.Helper()
	resp, text := f.send(method, path, body, header...)
	if resp.StatusCode != want {
		f.t.Errorf("%s: got %d %s, want %d", what, resp.StatusCode, text, want)
	}
	return text
}

func TestCodeSignsInOnce(t *testing.T) {
	f := newFixture(t)
	code := f.code("token-alice")
	cookie := f.login(`{"code":"` + code + `"}`)
	got := f.wantCode("session", http.StatusOK, http.MethodGet, "/console/api/session", "", "Cookie", cookie)
	if !strings.Contains(got, `"username":"alice"`) || !strings.Contains(got, `"method":"token"`) {
		t.Errorf("the session is %s, want alice's token", got)
	}
	f.wantCode("second use", http.StatusUnauthorized, http.MethodPost, "/console/api/login", `{"code":"`+code+`"}`, page("")...)
	f.wantCode("another code", http.StatusUnauthorized, http.MethodPost, "/console/api/login", `{"code":"AAAAAAAAAAAAAAAAAAAAAA"}`,
		page("")...)
	late := f.code("token-alice")
	f.pass(codeLife)
	f.wantCode("late use", http.StatusUnauthorized, http.MethodPost, "/console/api/login", `{"code":"`+late+`"}`, page("")...)
	f.wantCode("no credentials", http.StatusUnauthorized, http.MethodPost, "/console/api/codes", "", pageHeader, "1")
	f.wantCode("session's credentials", http.StatusUnauthorized, http.MethodPost, "/console/api/codes", "", page(cookie)...)
	f.wantCode("impersonation", http.StatusBadRequest, http.MethodPost, "/console/api/codes", "",
		"Authorization", "Bearer token-alice", pageHeader, "1", "Impersonate-User", "bob")
	for range mostCodes {
		f.code("token-alice")
	}
	f.wantCode("one code too many", http.StatusTooManyRequests, http.MethodPost, "/console/api/codes", "",
		"Authorization", "Bearer token-alice", pageHeader, "1")
	f.pass(codeLife)
	f.code("token-alice")
}

func TestTokenSession(t *testing.T) {
	f := newFixture(t)
	for _, body := range []string{`{"token":"bad"}`, `{"token":"token-a b"}`, `{"token":"\u0000"}`} {
		f.wantCode(body, http.StatusUnauthorized, http.MethodPost, "/console/api/login", body, page("")...)
	}
	for _, body := range []string{`{}`, `{"token":"token-alice","code":"x"}`, `[]`, `nonsense`, ``} {
		f.wantCode(body, http.StatusBadRequest, http.MethodPost, "/console/api/login", body, page("")...)
	}
	f.wantCode("long body", http.StatusRequestEntityTooLarge, http.MethodPost, "/console/api/login",
		`{"token":"`+strings.Repeat("x", bodyBytes)+`"}`, page("")...)
	for _, length := range []int{0, 3000, 20_000} {
		token := "token-alice-" + strings.Repeat("x", length)
		cookie := f.login(`{"token":"` + token + `"}`)
		var got asked
		body := f.wantCode("API", http.StatusOK, http.MethodGet, "/console/cluster/api/v1/pods?limit=5", "", "Cookie", cookie,
			"Authorization", "Bearer token-bob", "X-Remote-User", "root", "Referer", "x")
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		if got.User != "alice" || got.URI != "/api/v1/pods?limit=5" || got.Header.Get("Authorization") != "Bearer "+token {
			t.Errorf("with a token of %d bytes the API sees %s asking for %s", len(token), got.User, got.URI)
		}
		for _, name := range []string{"Cookie", pageHeader, "X-Remote-User", "Sec-Fetch-Site", "Referer"} {
			if got.Header.Get(name) != "" {
				t.Errorf("the API gets the header %s: %s", name, got.Header.Get(name))
			}
		}
	}
	f.wantCode("token that is too long", http.StatusBadRequest, http.MethodPost, "/console/api/login",
		`{"token":"token-alice-`+strings.Repeat("x", 30_000)+`"}`, page("")...)

	cookie := f.login(`{"token":"token-alice"}`)
	f.revoke("token-alice")
	f.wantCode("revoked token", http.StatusUnauthorized, http.MethodGet, "/console/api/session", "", "Cookie", cookie)
	f.wantCode("revoked token", http.StatusUnauthorized, http.MethodGet, "/console/cluster/api/v1/pods", "", "Cookie", cookie)
}

func TestSessionsEnd(t *testing.T) {
	f := newFixture(t)
	cookie := f.login(`{"token":"token-alice"}`)
	name, value, _ := strings.Cut(cookie, "=")
	for what, bad := range map[string]string{
		"tampered":      name + "=" + value[:len(value)-2] + "AA",
		"cut":           name + "=" + value[:len(value)/2],
		"empty":         name + "=",
		"without count": name + "=" + strings.TrimPrefix(value, "1."),
		"count":         name + "=9." + strings.TrimPrefix(value, "1."),
		"more":          name + "=2." + strings.TrimPrefix(value, "1."),
		"another name":  "mortise-console-00000000=" + value,
	} {
		f.wantCode(what, http.StatusUnauthorized, http.MethodGet, "/console/api/session", "", "Cookie", bad)
		f.wantCode(what, http.StatusUnauthorized, http.MethodGet, "/console/cluster/api", "", "Cookie", bad)
	}
	again := newFixture(t) // after a restart, with the same key
	again.wantCode("restart", http.StatusOK, http.MethodGet, "/console/api/session", "", "Cookie", cookie)
	other := newFixture(t, func(o *Options) { o.Key = Key{2} })
	other.wantCode("another key", http.StatusUnauthorized, http.MethodGet, "/console/api/session", "", "Cookie", cookie)
	otherName := other.console.sessions.cookieOf(0) + "=" + value
	other.wantCode("another key", http.StatusUnauthorized, http.MethodGet, "/console/api/session", "", "Cookie", otherName)

	resp, _ := f.send(http.MethodPost, "/console/api/logout", "", page(cookie)...)
	if c := resp.Cookies(); resp.StatusCode != http.StatusNoContent || len(c) != 1 || c[0].MaxAge >= 0 || c[0].Path != "/console/" {
		t.Errorf("sign-out: %d, cookies %v", resp.StatusCode, c)
	}
	f.pass(sessionLife)
	f.wantCode("expired", http.StatusUnauthorized, http.MethodGet, "/console/api/session", "", "Cookie", cookie)
	f.wantCode("expired", http.StatusUnauthorized, http.MethodGet, "/console/cluster/api", "", "Cookie", cookie)
}

// TestCookie checks the attributes of the session's cookie, also behind a prefix.
func TestCookie(t *testing.T) {
	f := newFixture(t)
	for prefix, want := range map[string]string{"": "/console/", "/team/a": "/team/a/console/", "/team/": "/team/console/"} {
		resp, _ := f.send(http.MethodPost, "/console/api/login", `{"token":"token-alice"}`, page("", "X-Forwarded-Prefix", prefix)...)
		c := resp.Cookies()
		if len(c) != 1 || !c[0].HttpOnly || !c[0].Secure || c[0].SameSite != http.SameSiteStrictMode || c[0].Path != want ||
			c[0].MaxAge <= 0 || c[0].Domain != "" {
			t.Errorf("prefix %q: cookies are %v", prefix, c)
		}
	}
	for _, prefix := range []string{"team", `/"><script>`, "//evil.example", "/a/../b", "/a;b", "/" + strings.Repeat("a", 300), "/a b"} {
		f.wantCode("prefix "+prefix, http.StatusBadRequest, http.MethodGet, "/console/", "", "X-Forwarded-Prefix", prefix)
	}
}

// TestOtherSitesWriteNothing sends what other sites can make a browser send with the user's cookie.
func TestOtherSitesWriteNothing(t *testing.T) {
	f := newFixture(t)
	cookie := f.login(`{"token":"token-alice"}`)
	own := f.server.URL
	for _, c := range []struct {
		what   string
		want   int
		method string
		header []string
	}{
		{"the page", 200, "POST", []string{"Sec-Fetch-Site", "same-origin", "Origin", own, pageHeader, "1"}},
		{"the page in an old browser", 200, "POST", []string{"Origin", own, pageHeader, "1"}},
		{"the page behind a proxy that rewrites Host", 200, "DELETE",
			[]string{"Sec-Fetch-Site", "same-origin", "Origin", "https://x.example", pageHeader, "1"}},
		{"a form of another site", 403, "POST",
			[]string{"Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example", "Content-Type", "text/plain"}},
		{"a form of another port", 403, "POST", []string{"Sec-Fetch-Site", "same-site", "Origin", "https://127.0.0.1:1"}},
		{"a fetch of another port", 403, "POST", []string{"Sec-Fetch-Site", "same-site", "Origin", "https://127.0.0.1:1", pageHeader, "1"}},
		{"a form of this origin", 403, "POST", []string{"Sec-Fetch-Site", "same-origin", "Origin", own}},
		{"a wrong header", 403, "PATCH", []string{"Sec-Fetch-Site", "same-origin", pageHeader, "0"}},
		{"a null origin", 403, "POST", []string{"Origin", "null", pageHeader, "1"}},
		{"a null origin that claims the same site", 403, "POST",
			[]string{"Sec-Fetch-Site", "same-origin", "Origin", "null", pageHeader, "1"}},
		{"another origin in an old browser", 403, "PUT", []string{"Origin", "https://evil.example", pageHeader, "1"}},
		{"the origin without TLS", 403, "PUT", []string{"Origin", "http://" + f.host(), pageHeader, "1"}},
		{"no origin at all", 403, "DELETE", []string{pageHeader, "1"}},
		{"typed by the user", 403, "POST", []string{"Sec-Fetch-Site", "none", pageHeader, "1"}},
		{"a read of the page", 200, "GET", []string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Dest", "empty"}},
		{"a read of a program", 200, "GET", nil},
		{"an image of another site", 403, "GET", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "image"}},
		{"a fetch of another site", 403, "GET", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "empty"}},
		{"a script of the page", 403, "GET", []string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Dest", "script"}},
		{"a document of the page", 403, "GET", []string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Dest", "document"}},
		{"a service worker of the page", 403, "GET", []string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Dest", "serviceworker"}},
		{"a name that was bound again", 421, "GET", []string{"Host", "evil.example", "Sec-Fetch-Site", "same-origin"}},
		{"a write by a name that was bound again", 421, "POST",
			[]string{"Host", "evil.example", "Sec-Fetch-Site", "same-origin", pageHeader, "1"}},
		{"a forwarded name that was bound again", 421, "GET", []string{"X-Forwarded-Host", "evil.example"}},
		{"a name of the server", 200, "POST",
			[]string{"Host", "mortise.example.com:6443", "Origin", "https://mortise.example.com:6443", pageHeader, "1"}},
		{"a name of a proxy", 200, "POST",
			[]string{"X-Forwarded-Host", "mortise.example.com", "Origin", "https://mortise.example.com", pageHeader, "1"}},
	} {
		h := append([]string{"Cookie", cookie}, c.header...)
		f.wantCode(c.what, c.want, c.method, "/console/cluster/api/v1/namespaces/a/pods", "", h...)
		if c.method == http.MethodPost && c.what != "the page behind a proxy that rewrites Host" {
			want := map[int]int{200: 204, 403: 403, 421: 421}[c.want]
			f.wantCode(c.what+", sign-out", want, c.method, "/console/api/logout", "", h...)
		}
	}
	f.wantCode("a simple sign-in", http.StatusUnsupportedMediaType, http.MethodPost, "/console/api/login", `{"token":"token-alice"}`,
		"Sec-Fetch-Site", "same-origin", pageHeader, "1", "Content-Type", "text/plain")
	f.wantCode("a method", http.StatusMethodNotAllowed, http.MethodGet, "/console/api/logout", "", "Cookie", cookie)
	f.wantCode("a code for another site", http.StatusForbidden, http.MethodPost, "/console/api/codes", "",
		"Authorization", "Bearer token-alice", pageHeader, "1", "Sec-Fetch-Site", "cross-site")
}

// TestResponsesOfTheClusterAreNoPages checks what the browser may do with what a pod answers.
func TestResponsesOfTheClusterAreNoPages(t *testing.T) {
	f := newFixture(t)
	cookie := f.login(`{"token":"token-alice"}`)
	resp, _ := f.send(http.MethodGet, "/console/cluster/api/v1/namespaces/a/pods/evil/proxy/", "", "Cookie", cookie)
	if got := resp.Header.Get("Content-Security-Policy"); got != "default-src 'none'; sandbox; frame-ancestors 'none'" {
		t.Errorf("the policy is %q", got)
	}
	if resp.Header.Get("Set-Cookie") != "" || resp.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("headers are %v", resp.Header)
	}
}

func TestPage(t *testing.T) {
	f := newFixture(t)
	for _, path := range []string{"/console/", "/console/pods", "/console/a/b/c?x=1", "/console/%2e%2e/x"} {
		resp, body := f.send(http.MethodGet, path, "")
		if resp.StatusCode != http.StatusOK || !strings.Contains(body, base) ||
			resp.Header.Get("Content-Type") != "text/html; charset=utf-8" {
			t.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
		const want = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
			"font-src 'self'; frame-ancestors 'none'; base-uri 'self'; form-action 'self'"
		if got := resp.Header.Get("Content-Security-Policy"); got != want {
			t.Errorf("%s: the policy is %q", path, got)
		}
	}
	resp, body := f.send(http.MethodGet, "/console/pods", "", "X-Forwarded-Prefix", "/team/a")
	if !strings.Contains(body, `<base href="/team/a/console/">`) {
		t.Errorf("with a prefix the page is %s", body)
	}
	f.wantCode("known page", http.StatusNotModified, http.MethodGet, "/console/pods", "", "X-Forwarded-Prefix", "/team/a",
		"If-None-Match", resp.Header.Get("Etag"))
	f.wantCode("another page", http.StatusOK, http.MethodGet, "/console/pods", "", "If-None-Match", resp.Header.Get("Etag"))
	f.wantCode("write", http.StatusMethodNotAllowed, http.MethodPost, "/console/pods", "")
	f.wantCode("asset", http.StatusNotFound, http.MethodGet, "/console/assets/none.js", "")
	f.wantCode("API", http.StatusNotFound, http.MethodGet, "/console/api/none", "")
	resp, _ = f.send(http.MethodGet, "/console", "", "X-Forwarded-Prefix", "/team/a")
	if resp.StatusCode != http.StatusPermanentRedirect || resp.Header.Get("Location") != "/team/a/console/" {
		t.Errorf("without a slash: %d to %s", resp.StatusCode, resp.Header.Get("Location"))
	}
	got := f.wantCode("who", http.StatusUnauthorized, http.MethodGet, "/console/api/session", "")
	if !strings.Contains(got, `"methods":["code","token"],"issuers":[]`) || !strings.Contains(got, `"kind":"Status"`) {
		t.Errorf("who is not signed in gets %s", got)
	}
	if !json.Valid(bytes.TrimSpace([]byte(f.wantCode("behind", http.StatusOK, http.MethodGet, "/api", "")))) {
		t.Error("the API behind the console does not answer")
	}
}
