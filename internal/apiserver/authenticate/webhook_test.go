// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticate

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/resource"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func claimsOf() resource.TokenClaims { return resource.TokenClaims{} }

// reloadedTimes returns the number of reloads with that outcome.
func (m *Metrics) reloadedTimes(status string) float64 {
	return counted(m.reloads.WithLabelValues(status, ""))
}

// counted returns a counter's value; -1 if it has none.
func counted(c prometheus.Counter) float64 {
	var out dto.Metric
	if err := c.Write(&out); err != nil {
		return -1
	}
	return out.GetCounter().GetValue()
}

// reviewer is a token webhook.
type reviewer struct {
	*httptest.Server
	mu     sync.Mutex
	asked  []authenticationv1.TokenReview
	paths  []string
	answer func(w http.ResponseWriter, n int, r *authenticationv1.TokenReview)
}

func newReviewer(t *testing.T, answer func(w http.ResponseWriter, n int, r *authenticationv1.TokenReview)) *reviewer {
	t.Helper()
	v := &reviewer{answer: answer}
	v.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		v.mu.Lock()
		v.asked, v.paths = append(v.asked, review), append(v.paths, r.URL.Path)
		n := len(v.asked)
		v.mu.Unlock()
		v.answer(w, n, &review)
	}))
	t.Cleanup(v.Close)
	return v
}

func (v *reviewer) times() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.asked)
}

func (v *reviewer) kubeconfig(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "webhook.yaml")
	c := clientcmdapi.NewConfig()
	c.Clusters["webhook"] = &clientcmdapi.Cluster{Server: v.URL + "/review",
		CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: v.Certificate().Raw})}
	c.AuthInfos["us"] = clientcmdapi.NewAuthInfo()
	c.Contexts["c"] = &clientcmdapi.Context{Cluster: "webhook", AuthInfo: "us"}
	c.CurrentContext = "c"
	if err := clientcmd.WriteToFile(*c, file); err != nil {
		t.Fatal(err)
	}
	return file
}

func (v *reviewer) world(t *testing.T, version string, ttl time.Duration) *world {
	t.Helper()
	s, err := LoadWebhook(v.kubeconfig(t), version, ttl)
	if err != nil {
		t.Fatal(err)
	}
	s.Retry = wait.Backoff{Duration: time.Millisecond, Factor: 1, Steps: 5}
	return newWorld(t, Settings{Webhook: s}, nil)
}

// say answers a review with a status, in the version of the request.
func say(w http.ResponseWriter, r *authenticationv1.TokenReview, s authenticationv1.TokenReviewStatus) {
	w.Header().Set("Content-Type", "application/json")
	r.Status = s
	_ = json.NewEncoder(w).Encode(r)
}

func TestWebhook(t *testing.T) {
	allow := authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{
		Username: "bob", UID: "7", Groups: []string{"dev"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}},
	}}
	with := func(change func(*authenticationv1.TokenReviewStatus)) authenticationv1.TokenReviewStatus {
		s := allow
		change(&s)
		return s
	}
	for _, c := range []struct {
		name   string
		answer func(w http.ResponseWriter, n int, r *authenticationv1.TokenReview)
		error  string // empty: allowed
		again  bool   // the second request calls the webhook again
		calls  int    // of the first request
	}{
		{name: "allow", answer: func(w http.ResponseWriter, _ int, r *authenticationv1.TokenReview) { say(w, r, allow) }, calls: 1},
		{name: "allow, for us", answer: func(w http.ResponseWriter, _ int, r *authenticationv1.TokenReview) {
			say(w, r, with(func(s *authenticationv1.TokenReviewStatus) { s.Audiences = []string{"x", Issuer} }))
		}, calls: 1},
		{name: "allow, for others", answer: func(w http.ResponseWriter, _ int, r *authenticationv1.TokenReview) {
			say(w, r, with(func(s *authenticationv1.TokenReviewStatus) { s.Audiences = []string{"x"} }))
		}, error: "invalid bearer token", calls: 1},
		{name: "deny", answer: func(w http.ResponseWriter, _ int, r *authenticationv1.TokenReview) {
			say(w, r, authenticationv1.TokenReviewStatus{})
		}, error: "invalid bearer token", calls: 1},
		{name: "error", answer: func(w http.ResponseWriter, _ int, r *authenticationv1.TokenReview) {
			say(w, r, authenticationv1.TokenReviewStatus{Error: "the directory is down"})
		}, error: "the directory is down", again: true, calls: 1},
		{name: "fails for a while", answer: func(w http.ResponseWriter, n int, r *authenticationv1.TokenReview) {
			if n < 3 {
				http.Error(w, "not yet", http.StatusInternalServerError)
				return
			}
			say(w, r, allow)
		}, calls: 3},
		{name: "fails", answer: func(w http.ResponseWriter, _ int, _ *authenticationv1.TokenReview) {
			http.Error(w, "no", http.StatusInternalServerError)
		},
			error: "an error on the server", again: true, calls: 5},
		{name: "refuses us", answer: func(w http.ResponseWriter, _ int, _ *authenticationv1.TokenReview) {
			http.Error(w, "no", http.StatusForbidden)
		},
			error: "no", again: true, calls: 1},
		{name: "no JSON", answer: func(w http.ResponseWriter, _ int, _ *authenticationv1.TokenReview) { _, _ = w.Write([]byte("hello")) },
			error: "couldn't get version/kind", again: true, calls: 1},
		{name: "another kind", answer: func(w http.ResponseWriter, _ int, _ *authenticationv1.TokenReview) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"apiVersion":"v1","kind":"Pod"}`))
		}, error: "unknown conversion", again: true, calls: 1},
	} {
		for _, version := range []string{"v1", "v1beta1"} {
			t.Run(c.name+" "+version, func(t *testing.T) {
				v := newReviewer(t, c.answer)
				w := v.world(t, version, time.Hour)
				for n := range 2 {
					who, err := w.with(t.Context(), "secret-token")
					switch {
					case c.error == "" && (err != nil || who.GetName() != "bob" || who.GetUID() != "7" ||
						!slices.Equal(who.GetGroups(), []string{"dev", Authenticated}) || who.GetExtra()["k"][0] != "v"):
						t.Fatalf("who %v, error %v", who, err)
					case c.error != "" && (err == nil || !strings.Contains(err.Error(), c.error)):
						t.Fatalf("who %v, error %v, want %s", who, err, c.error)
					}
					want := c.calls
					if n == 1 && c.again {
						want = 2 * c.calls
					}
					if got := v.times(); got != want {
						t.Fatalf("request %d: asked %d times, want %d", n, got, want)
					}
				}
				r := v.asked[0]
				if r.APIVersion != "authentication.k8s.io/"+version || r.Spec.Token != "secret-token" ||
					!slices.Equal(r.Spec.Audiences, []string{Issuer}) || v.paths[0] != "/review" {
					t.Errorf("asked %+v at %s", r, v.paths[0])
				}
				e := w.ledger.Snapshot()
				if len(e) != 1 || e[0].Point != extension.TokenWebhook || e[0].Calls != int64(v.times()) || e[0].Where == "" {
					t.Errorf("ledger: %+v", e)
				}
			})
		}
	}
}

// TestWebhookIsDown checks that an unavailable webhook affects only its own tokens.
func TestWebhookIsDown(t *testing.T) {
	v := newReviewer(t, nil)
	w := v.world(t, "v1", time.Hour)
	v.Close()
	if _, err := w.with(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "connect") {
		t.Errorf("error %v", err)
	}
	if !w.knows(t, w.issue(t, claimsOf())) {
		t.Error("a service account was refused with it")
	}
}

// TestWebhookIsSlow checks that concurrent requests with the same token share one call, and that one of them may leave
// without affecting the others.
func TestWebhookIsSlow(t *testing.T) {
	begun, go_ := make(chan struct{}), make(chan struct{})
	v := newReviewer(t, func(w http.ResponseWriter, _ int, r *authenticationv1.TokenReview) {
		close(begun)
		<-go_
		say(w, r, authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "bob"}})
	})
	w := v.world(t, "v1", time.Hour)
	hasty, leave := context.WithCancel(t.Context())
	first := make(chan error)
	go func() { _, err := w.with(hasty, "x"); first <- err }()
	<-begun
	second := make(chan error)
	go func() { _, err := w.with(t.Context(), "x"); second <- err }()
	leave()
	if err := <-first; err == nil {
		t.Error("who left was served")
	}
	close(go_)
	if err := <-second; err != nil {
		t.Errorf("who stayed: %v", err)
	}
	if n := v.times(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

func TestWebhookIsChecked(t *testing.T) {
	v := newReviewer(t, nil)
	if _, err := LoadWebhook(v.kubeconfig(t), "v2", 0); err == nil ||
		!strings.Contains(err.Error(), `unsupported authentication webhook version "v2"`) {
		t.Errorf("version: %v", err)
	}
	file := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{file, file + "-none"} {
		if _, err := LoadWebhook(f, "v1", 0); err == nil || !strings.Contains(err.Error(), f) {
			t.Errorf("%s: %v", f, err)
		}
	}
}
