// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devhook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/mortise-dev/mortise/extension/trust"
)

// Calls is a server on this machine that forwards calls to a process, and prints each. Every program on the machine can reach it, so it
// forwards only requests whose path begins with the token, which is in the target's URL alone.
type Calls struct {
	Target Target // of the callers

	token    string
	listener net.Listener
	server   *http.Server
	served   sync.WaitGroup

	mu  sync.Mutex
	out io.Writer
	now func() time.Time
}

// maxBody bounds what is read of a question and of an answer.
const maxBody = 16 << 20

// PassOn listens on a free port of 127.0.0.1 and passes calls on to u, whatever certificate that shows.
func PassOn(ctx context.Context, u *url.URL, out io.Writer, now func() time.Time) (*Calls, error) {
	pair, err := trust.Issue("mortise webhook dev", []string{"127.0.0.1"}, now(), life)
	if err != nil {
		return nil, err
	}
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	c := &Calls{token: rand.Text(), listener: l, out: out, now: now}
	c.Target = Target{URL: &url.URL{Scheme: "https", Host: l.Addr().String(), Path: "/" + c.token}, Bundle: pair.Authority}
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(u) },
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}},
		//nolint:gosec // a process of the developer's own
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, "call "+u.Host+": "+err.Error(), http.StatusBadGateway)
		},
	}
	c.server = &http.Server{
		ReadHeaderTimeout: 30 * time.Second, TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo),
		Handler:  http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.pass(proxy, w, r) }),
	}
	c.served.Go(func() { _ = c.server.ServeTLS(l, "", "") }) // ends with Close
	return c, nil
}

// Close ends it.
func (c *Calls) Close() error {
	err := c.server.Close()
	c.served.Wait()
	return err
}

// question and answer are what is printed of reviews, of admission and of conversion.
type question struct {
	Kind    string
	Request struct {
		Operation, Name, Namespace, SubResource string
		Resource                                struct{ Group, Version, Resource string }
		UserInfo                                struct{ Username string }
		DesiredAPIVersion                       string
		Objects                                 []json.RawMessage
	}
}

type answer struct {
	Response struct {
		Allowed bool
		Patch   []byte
		Status  struct{ Message, Reason string }
		Result  struct{ Status, Message string }
	}
}

// kept is an answer on its way, a copy of which is kept.
type kept struct {
	http.ResponseWriter
	code int
	body bytes.Buffer
}

func (k *kept) WriteHeader(code int) {
	k.code = code
	k.ResponseWriter.WriteHeader(code)
}

func (k *kept) Write(b []byte) (int, error) {
	if k.body.Len() < maxBody {
		k.body.Write(b)
	}
	return k.ResponseWriter.Write(b)
}

// admitted takes the token off the path; false: it is not there.
func (c *Calls) admitted(r *http.Request) bool {
	token, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if subtle.ConstantTimeCompare([]byte(token), []byte(c.token)) != 1 {
		return false
	}
	r.URL.Path = "/" + rest
	if r.URL.RawPath != "" {
		_, raw, _ := strings.Cut(strings.TrimPrefix(r.URL.RawPath, "/"), "/")
		r.URL.RawPath = "/" + raw
	}
	return true
}

func (c *Calls) pass(to http.Handler, w http.ResponseWriter, r *http.Request) {
	if !c.admitted(r) {
		http.Error(w, "the path does not begin with the token of this session", http.StatusForbidden)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	begun := c.now()
	k := &kept{ResponseWriter: w, code: http.StatusOK}
	to.ServeHTTP(k, r)
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(c.out, "%s %s %s in %s\n", begun.Format(time.TimeOnly), r.URL.Path, tell(body, k.code, k.body.Bytes()),
		c.now().Sub(begun).Round(time.Millisecond))
}

// tell says in words what was asked and what was answered.
func tell(asked []byte, code int, said []byte) string {
	var q question
	var a answer
	if err := json.Unmarshal(asked, &q); err != nil {
		return fmt.Sprintf("request without a review (%v), answered %d", err, code)
	}
	what := fmt.Sprintf("%s %s %s by %s", q.Request.Operation, path(q.Request.Resource.Resource, q.Request.SubResource),
		cmp.Or(path(q.Request.Namespace, q.Request.Name), "-"), q.Request.UserInfo.Username)
	if q.Kind == "ConversionReview" {
		what = fmt.Sprintf("convert %d objects to %s", len(q.Request.Objects), q.Request.DesiredAPIVersion)
	}
	if code != http.StatusOK {
		return fmt.Sprintf("%s: answered %d %s", what, code, clip(said))
	}
	if err := json.Unmarshal(said, &a); err != nil {
		return fmt.Sprintf("%s: answer without a review: %v", what, err)
	}
	verdict := "denied: " + cmp.Or(a.Response.Status.Message, a.Response.Status.Reason, "without explanation")
	switch {
	case q.Kind == "ConversionReview" && a.Response.Result.Status == "Success":
		verdict = "converted"
	case q.Kind == "ConversionReview":
		verdict = "failed: " + a.Response.Result.Message
	case a.Response.Allowed && len(a.Response.Patch) > 0:
		verdict = "allowed, with the patch " + clip(a.Response.Patch)
	case a.Response.Allowed:
		verdict = "allowed"
	}
	return what + ": " + verdict
}

func path(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "/" + b
}

// widest is how much of a body is printed.
const widest = 300

func clip(b []byte) string {
	b = bytes.TrimSpace(b)
	if len(b) > widest {
		return string(bytes.ToValidUTF8(b[:widest], nil)) + "…"
	}
	return string(b)
}
