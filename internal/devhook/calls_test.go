// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devhook

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestCallsAskForToken calls as the API server does, by the target's URL, and as any other program of the machine may.
func TestCallsAskForToken(t *testing.T) {
	var paths []string
	process := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.URL.EscapedPath())
		_, _ = io.WriteString(w, "{}")
	}))
	defer process.Close()
	to, err := url.Parse(process.URL + "/base")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	c, err := PassOn(t.Context(), to, &out, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.Target.Bundle)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	call := func(path string) int {
		t.Helper()
		u := *c.Target.URL
		u.Path = ""
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, u.String()+path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	own := c.Target.URL.Path
	if len(own) < len("/")+26 {
		t.Errorf("the token %q can be guessed", own)
	}
	for _, path := range []string{"", "/", "/check", "/check" + own, own[:len(own)-1] + "/check", own + "x/check", "/" + own + "/check",
		strings.ToLower(own) + "/check"} {
		if code := call(path); code != http.StatusForbidden {
			t.Errorf("%q: %d", path, code)
		}
	}
	for _, path := range []string{own + "/check", own, own + "/a%2Fb"} {
		if code := call(path); code != http.StatusOK {
			t.Errorf("%q: %d", path, code)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if want := []string{"/base/check", "/base/", "/base/a%2Fb"}; !slices.Equal(paths, want) {
		t.Errorf("the process is called at %q, want %q", paths, want)
	}
	if strings.Contains(out.String(), own[1:]) {
		t.Errorf("the token is printed: %s", out.String())
	}
}
