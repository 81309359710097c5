// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package review

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
)

// kubeconfig returns a kubeconfig for a server.
func kubeconfig(t *testing.T, s *httptest.Server) *string {
	t.Helper()
	dir := t.TempDir()
	ca, file := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"w","user":"u"}}],
"users":[{"name":"u","user":{}}],"clusters":[{"name":"w","cluster":{"server":%q,"certificate-authority":%q}}]}`, s.URL, ca)
	for name, data := range map[string][]byte{ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}),
		file: []byte(text)} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return &file
}

// configuration returns a configuration that calls a server, and caches its responses for an hour.
func configuration(file *string) *apiserver.WebhookConfiguration {
	hour := metav1.Duration{Duration: time.Hour}
	return &apiserver.WebhookConfiguration{
		AuthorizedTTL: hour, UnauthorizedTTL: hour, CacheAuthorizedRequests: true, CacheUnauthorizedRequests: true,
		SubjectAccessReviewVersion: "v1",
		FailurePolicy:              apiserver.FailurePolicyNoOpinion, ConnectionInfo: apiserver.WebhookConnectionInfo{KubeConfigFile: file},
	}
}

func options() Options {
	return Options{Ledger: extension.NewLedger(clock.RealClock{}), Compiler: cel.NewDefaultCompiler(),
		Metrics: metrics.NoopAuthorizerMetrics{}}
}

// TestAuthorizer checks that responses become decisions, and that they are cached as configured.
func TestAuthorizer(t *testing.T) {
	var calls atomic.Int64
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		var review authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: review.Spec.User == "friend", Denied: review.Spec.User == "enemy",
			Reason: "because"}
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(s.Close)
	file := kubeconfig(t, s)
	for _, kept := range []struct{ yes, no bool }{{true, true}, {true, false}, {false, true}} {
		c, o := configuration(file), options()
		c.CacheAuthorizedRequests, c.CacheUnauthorizedRequests = kept.yes, kept.no
		z, err := New("hook", c, o)
		if err != nil {
			t.Fatal(err)
		}
		if z.Name() != "hook" {
			t.Errorf("name %q", z.Name())
		}
		for _, a := range []struct {
			user   string
			want   authorize.Decision
			reason string
			once   bool
		}{{"friend", authorize.Allow, "because", kept.yes}, {"enemy", authorize.Deny, "because", kept.no},
			{"stranger", authorize.NoOpinion, "because", kept.no}} {
			before, want := calls.Load(), int64(2)
			if a.once {
				want = 1
			}
			for range 2 {
				d, reason, err := z.Authorize(t.Context(), &authorize.Attributes{User: &user.DefaultInfo{Name: a.user}, Verb: "get", Path: "/x"})
				if d != a.want || !strings.Contains(reason, a.reason) || err != nil {
					t.Errorf("%s: %v %q %v", a.user, d, reason, err)
				}
			}
			if n := calls.Load() - before; n != want {
				t.Errorf("%+v: %s was asked about %d times, want %d", kept, a.user, n, want)
			}
		}
		if e := o.Ledger.Snapshot(); len(e) != 1 || e[0].Name != "hook" || e[0].Point != extension.AuthorizationWebhook || e[0].Failures != 0 {
			t.Errorf("the ledger has %+v", e)
		}
		rs, paths, incomplete, err := z.Review(t.Context(), nil, "ns")
		if rs != nil || paths != nil || !incomplete || err == nil || err.Error() != "webhook authorizer does not support user rule resolution" {
			t.Errorf("rules: %v %v %t %v", rs, paths, incomplete, err)
		}
	}
}

// TestTimeout checks that the failure policy decides if a webhook does not respond in time.
func TestTimeout(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // so that the server notices the end of the connection
		<-r.Context().Done()
	}))
	t.Cleanup(s.Close)
	for policy, want := range map[string]authorize.Decision{apiserver.FailurePolicyNoOpinion: authorize.NoOpinion,
		apiserver.FailurePolicyDeny: authorize.Deny} {
		c := configuration(kubeconfig(t, s))
		c.FailurePolicy, c.Timeout.Duration = policy, 50*time.Millisecond
		z, err := New("hook", c, options())
		if err != nil {
			t.Fatal(err)
		}
		if d, _, err := z.Authorize(t.Context(), &authorize.Attributes{User: &user.DefaultInfo{Name: "x"}, Verb: "get", Path: "/x"}); d != want ||
			err == nil {
			t.Errorf("%s: %v, %v", policy, d, err)
		}
	}
}

// TestNew covers invalid configurations.
func TestNew(t *testing.T) {
	s := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(s.Close)
	file, none := kubeconfig(t, s), "/does/not/exist"
	for _, c := range []struct {
		change func(*apiserver.WebhookConfiguration)
		want   string
	}{
		{func(c *apiserver.WebhookConfiguration) { c.ConnectionInfo.KubeConfigFile = &none }, "no such file"},
		{func(c *apiserver.WebhookConfiguration) { c.FailurePolicy = "Maybe" }, `unknown failurePolicy "Maybe"`},
		{func(c *apiserver.WebhookConfiguration) { c.SubjectAccessReviewVersion = "v0" }, "v0"},
	} {
		config := configuration(file)
		c.change(config)
		if _, err := New("hook", config, options()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// transport is a function as a transport.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestBooked checks which calls the ledger counts as failures, and that the client receives each response and each
// error unchanged.
func TestBooked(t *testing.T) {
	const review = `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview"}`
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	torn := errors.New("torn")
	for name, c := range map[string]struct {
		ctx    context.Context
		code   int
		body   io.Reader
		err    error  // of the transport
		error  string // of the call
		read   error  // of the answer's body
		failed string // the error in the ledger; empty: no failure
	}{
		"a review":             {code: 200, body: strings.NewReader(review)},
		"the last good status": {code: 299, body: strings.NewReader(review)},
		"the first bad status": {code: 300, body: strings.NewReader(review), failed: "the webhook answered 300 Multiple Choices"},
		"no status yet":        {code: 199, body: strings.NewReader(review), failed: "the webhook answered 199 "},
		"no JSON":              {code: 200, body: strings.NewReader("hello"), failed: "decode answer"},
		"another kind": {code: 200, body: strings.NewReader(`{"apiVersion":"v1","kind":"Pod"}`),
			failed: "the answer is no SubjectAccessReview"},
		"no answer":            {err: torn, error: "torn", failed: "torn"},
		"nobody waits":         {ctx: gone, err: context.Canceled, error: "context canceled"},
		"half an answer":       {code: 200, body: io.MultiReader(strings.NewReader("{"), broken{torn}), read: torn, failed: "torn"},
		"as long as it may be": {code: 200, body: bytes.NewReader(append([]byte(review), bytes.Repeat([]byte(" "), maxAnswer-len(review))...))},
		"longer than it may be": {code: 200, body: bytes.NewReader(make([]byte, maxAnswer+1)), error: "the answer is longer than 3145728 bytes",
			failed: "the answer is longer"},
	} {
		ledger := extension.NewLedger(clock.RealClock{})
		b := &booked{ref: extension.Ref{Point: extension.AuthorizationWebhook, Name: "hook"}, ledger: ledger,
			next: transport(func(*http.Request) (*http.Response, error) {
				if c.err != nil {
					return nil, c.err
				}
				return &http.Response{StatusCode: c.code, Body: io.NopCloser(c.body)}, nil
			})}
		if c.ctx == nil {
			c.ctx = t.Context()
		}
		answer, err := b.RoundTrip(httptest.NewRequest(http.MethodPost, "/", nil).WithContext(c.ctx))
		if (err == nil) != (c.error == "") || err != nil && err.Error() != c.error || (answer == nil) != (err != nil) {
			t.Errorf("%s: %v, %v", name, answer, err)
			continue
		}
		if answer != nil {
			body, err := io.ReadAll(answer.Body)
			if !errors.Is(err, c.read) || len(body) == 0 || answer.StatusCode != c.code || answer.Body.Close() != nil {
				t.Errorf("%s: read %d bytes, %v", name, len(body), err)
			}
		}
		if e := ledger.Snapshot()[0]; e.Calls != 1 || (e.Failures > 0) != (c.failed != "") || !strings.Contains(e.LastError, c.failed) {
			t.Errorf("%s: the ledger has %+v", name, e)
		}
	}
}

// broken is a body whose reads fail.
type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }
