// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package modes

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/node"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/rbac"
)

// webhook is an authorization webhook on HTTPS.
type webhook struct {
	*httptest.Server
	kubeconfig string

	mu      sync.Mutex
	reviews []authorizationv1.SubjectAccessReview
	answer  func(r *authorizationv1.SubjectAccessReview, w http.ResponseWriter)
}

// asked is the response writer of one call; gone is closed when its client has left.
type asked struct {
	http.ResponseWriter
	gone <-chan struct{}
}

// says is a webhook's response.
func says(status authorizationv1.SubjectAccessReviewStatus) func(*authorizationv1.SubjectAccessReview, http.ResponseWriter) {
	return func(r *authorizationv1.SubjectAccessReview, w http.ResponseWriter) {
		r.Status = status
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(r)
	}
}

func newWebhook(t *testing.T) *webhook {
	t.Helper()
	h := &webhook{answer: says(authorizationv1.SubjectAccessReviewStatus{})}
	h.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review authorizationv1.SubjectAccessReview
		body, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(body, &review); err != nil || r.URL.Path != "/decide" {
			http.Error(w, "what?", http.StatusBadRequest)
			return
		}
		h.mu.Lock()
		h.reviews = append(h.reviews, review)
		answer := h.answer
		h.mu.Unlock()
		answer(&review, &asked{w, r.Context().Done()})
	}))
	t.Cleanup(h.Close)
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.pem")
	must(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw}), 0o600))
	h.kubeconfig = filepath.Join(dir, "webhook.kubeconfig")
	must(t, os.WriteFile(h.kubeconfig, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: w, cluster: {server: "%s/decide", certificate-authority: "%s"}}]
users: [{name: us, user: {}}]
contexts: [{name: c, context: {cluster: w, user: us}}]
current-context: c
`, h.URL, ca), 0o600))
	return h
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (h *webhook) does(answer func(r *authorizationv1.SubjectAccessReview, w http.ResponseWriter)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answer, h.reviews = answer, nil
}

func (h *webhook) calls() []authorizationv1.SubjectAccessReview {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reviews
}

// configuration returns an AuthorizationConfiguration with the webhook and additional settings.
func (h *webhook) configuration(more, others string) string {
	return fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Webhook
  name: hook
  webhook:
    timeout: 1s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: NoOpinion
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: "%s"}
%s
%s`, h.kubeconfig, more, others)
}

// logged is the log of a chain.
type logged struct {
	mu    sync.Mutex
	text  strings.Builder
	heard chan struct{}
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	select {
	case l.heard <- struct{}{}:
	default:
	}
	return len(p), nil
}

// await waits for a log line that contains all parts.
func (l *logged) await(t *testing.T, parts ...string) {
	t.Helper()
	late := time.After(20 * time.Second)
	for {
		l.mu.Lock()
		text := l.text.String()
		l.mu.Unlock()
		for line := range strings.Lines(text) {
			all := true
			for _, p := range parts {
				all = all && strings.Contains(line, p)
			}
			if all {
				return
			}
		}
		select {
		case <-l.heard:
		case <-late:
			t.Fatalf("nobody logged %q:\n%s", parts, text)
		}
	}
}

func build(t *testing.T, o options.Authorization) (*Chain, *extension.Ledger, *logged) {
	t.Helper()
	s, err := Load(o, nil)
	must(t, err)
	log := &logged{heard: make(chan struct{}, 1)}
	ledger := extension.NewLedger(clock.RealClock{})
	c, err := s.Build(Options{Roles: &rbac.Index{}, Node: &node.Authorizer{}, Ledger: ledger, Log: slog.New(slog.NewTextHandler(log, nil)),
		ServerID: "me"})
	must(t, err)
	return c, ledger, log
}

// count returns a counter's value.
func count(t *testing.T, c prometheus.Collector, name string, labels map[string]string) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	all, err := r.Gather()
	must(t, err)
	for _, f := range all {
		for _, m := range f.GetMetric() {
			have := 0
			for _, l := range m.GetLabel() {
				if v, ok := labels[l.GetName()]; ok && v == l.GetValue() {
					have++
				}
			}
			if f.GetName() == name && have == len(labels) {
				return m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount()) + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "authorization.yaml")
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

var jane = &user.DefaultInfo{Name: "jane", UID: "7", Groups: []string{"devs"}, Extra: map[string][]string{"k": {"v"}}}

func pods(name string) *authorize.Attributes {
	return &authorize.Attributes{User: jane, Verb: "get", Version: "v1", Resource: "pods", Namespace: "ns", Name: name, ResourceRequest: true}
}

// TestWebhookAnswers covers the effect of each response of a webhook, with both failure policies.
func TestWebhookAnswers(t *testing.T) {
	type status = authorizationv1.SubjectAccessReviewStatus
	hang := func(_ *authorizationv1.SubjectAccessReview, w http.ResponseWriter) { <-w.(*asked).gone } // until the client leaves
	for _, c := range []struct {
		name   string
		answer func(*authorizationv1.SubjectAccessReview, http.ResponseWriter)
		deny   bool // the failure policy
		d      authorize.Decision
		reason string
		err    string
		result string // the label in upstream's metric
	}{
		{"allowed", says(status{Allowed: true, Reason: "a friend"}), false, authorize.Allow, "a friend", "", "success"},
		{"denied", says(status{Denied: true, Reason: "an enemy"}), false, authorize.Deny, "an enemy", "", "success"},
		{"not allowed is no opinion", says(status{Reason: "who?"}), false, authorize.NoOpinion, "hook: who?", "", "success"},
		{"allowed and denied", says(status{Allowed: true, Denied: true}), false, authorize.Deny, "", "both allow and deny", "success"},
		{"not JSON", func(_ *authorizationv1.SubjectAccessReview, w http.ResponseWriter) { _, _ = io.WriteString(w, "hello") }, false,
			authorize.NoOpinion, "", "couldn't get version/kind", "error"},
		{"another kind", func(_ *authorizationv1.SubjectAccessReview, w http.ResponseWriter) {
			_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"Pod"}`)
		}, true, authorize.Deny, "", "Pod", "error"},
		{"forbidden, and the policy is to deny", func(_ *authorizationv1.SubjectAccessReview, w http.ResponseWriter) {
			http.Error(w, "go away", http.StatusForbidden)
		}, true, authorize.Deny, "", "go away", "error"},
		// the client has two timeouts with different errors,
		{"slow, and the policy is to deny", hang, true, authorize.Deny, "", "/decide", "timeout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newWebhook(t)
			h.does(c.answer)
			text := h.configuration("", "")
			if c.deny {
				text = strings.Replace(text, "failurePolicy: NoOpinion", "failurePolicy: Deny", 1)
			}
			chain, ledger, _ := build(t, options.Authorization{ConfigFile: file(t, text)})
			d, reason, err := chain.Authorize(t.Context(), pods("x"))
			got := ""
			if err != nil {
				got = err.Error()
			}
			if d != c.d || reason != c.reason || (c.err == "") != (err == nil) || !strings.Contains(got, c.err) {
				t.Errorf("got %v %q %v, want %v %q %s", d, reason, err, c.d, c.reason, c.err)
			}
			if n := count(t, chain.Metrics(), "apiserver_authorization_webhook_evaluations_total",
				map[string]string{"name": "hook", "result": c.result}); n < 1 {
				t.Errorf("no call is counted as %s", c.result)
			}
			e := ledger.Snapshot()
			if len(e) != 1 || e[0].Point != extension.AuthorizationWebhook || e[0].Name != "hook" || e[0].Calls < 1 ||
				(e[0].Failures > 0) != (c.result != "success") {
				t.Errorf("the ledger has %+v", e)
			}
		})
	}
}

// TestWebhookDown checks that a webhook that does not respond leaves the decision to the next authorizer; its error
// appears if there is none.
func TestWebhookDown(t *testing.T) {
	t.Parallel()
	h := newWebhook(t)
	chain, ledger, _ := build(t, options.Authorization{ConfigFile: file(t, h.configuration("", "- {type: AlwaysAllow, name: alwaysallow}"))})
	h.Close()
	if d, _, err := chain.Authorize(t.Context(), pods("x")); d != authorize.Allow || err != nil {
		t.Errorf("the next authorizer was not asked: %v %v", d, err)
	}
	if e := ledger.Snapshot(); e[0].State != extension.Failing || !strings.Contains(e[0].LastError, "refused") {
		t.Errorf("the ledger has %+v", e)
	}
	if n := count(t, chain.Metrics(), "apiserver_authorization_webhook_evaluations_fail_open_total",
		map[string]string{"name": "hook", "result": "error"}); n != 1 {
		t.Errorf("counted %v that failed open", n)
	}
	if n := count(t, chain.Metrics(), "apiserver_authorization_decisions_total",
		map[string]string{"type": "AlwaysAllow", "name": "alwaysallow", "decision": "allowed"}); n != 1 {
		t.Errorf("counted %v decisions", n)
	}
	alone, _, _ := build(t, options.Authorization{ConfigFile: file(t, h.configuration("", ""))})
	if d, _, err := alone.Authorize(t.Context(), pods("x")); d != authorize.NoOpinion || err == nil ||
		!strings.Contains(err.Error(), "connection refused") {
		t.Errorf("alone: %v %v", d, err)
	}
}

// TestRetries checks that a call with a response of 500 is retried.
func TestRetries(t *testing.T) {
	t.Parallel()
	h := newWebhook(t)
	chain, ledger, _ := build(t, options.Authorization{ConfigFile: file(t, h.configuration("", ""))})
	n := 0
	h.does(func(r *authorizationv1.SubjectAccessReview, w http.ResponseWriter) {
		if n++; n == 1 {
			http.Error(w, "hm", http.StatusInternalServerError)
			return
		}
		says(authorizationv1.SubjectAccessReviewStatus{Allowed: true})(r, w)
	})
	if d, _, err := chain.Authorize(t.Context(), pods("x")); d != authorize.Allow || err != nil {
		t.Errorf("got %v %v", d, err)
	}
	if e := ledger.Snapshot()[0]; e.Calls != 2 || e.Failures != 1 || e.State != extension.OK {
		t.Errorf("the ledger has %+v", e)
	}
}

// TestWebhookSays checks that a review contains the whole user and the selectors as requirements, without invalid ones.
func TestWebhookSays(t *testing.T) {
	h := newWebhook(t)
	ttl := time.Duration(0)
	chain, _, _ := build(t, options.Authorization{Modes: []string{"Webhook"},
		Webhook: options.AuthorizationWebhook{ConfigFile: h.kubeconfig, AuthorizedTTL: &ttl, UnauthorizedTTL: &ttl}})
	list := pods("")
	list.Verb = "list"
	list.Select("spec.nodeName=a,status.phase!=Failed", "app in (x,y),!z")
	broken := pods("")
	broken.Select("a=b=c\\", "a in (b")
	for _, a := range []*authorize.Attributes{list, broken, {User: jane, Verb: "get", Path: "/metrics"}} {
		if _, _, err := chain.Authorize(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	all, err := json.MarshalIndent(h.calls(), "", " ")
	must(t, err)
	asked := h.calls()
	if len(asked) != 3 || asked[0].APIVersion != "authorization.k8s.io/v1beta1" { // the default of the flag
		t.Fatalf("the webhook was asked %s", all)
	}
	s := asked[0].Spec
	if s.User != "jane" || s.UID != "7" || s.Extra["k"][0] != "v" {
		t.Errorf("the user is %+v", s)
	}
	r := s.ResourceAttributes
	if r.FieldSelector == nil || len(r.FieldSelector.Requirements) != 2 || r.LabelSelector == nil || len(r.LabelSelector.Requirements) != 2 ||
		r.Resource != "pods" {
		t.Errorf("asked about %+v", r)
	}
	if r := asked[1].Spec.ResourceAttributes; r.FieldSelector != nil || r.LabelSelector != nil {
		t.Errorf("selectors that cannot be read: %+v", r)
	}
	if n := asked[2].Spec.NonResourceAttributes; n == nil || n.Path != "/metrics" || asked[2].Spec.ResourceAttributes != nil {
		t.Errorf("a path: %+v", asked[2].Spec)
	}
	rs, paths, incomplete, err := chain.Review(t.Context(), jane, "ns")
	if len(rs)+len(paths) > 0 || !incomplete || err == nil || err.Error() != "webhook authorizer does not support user rule resolution" {
		t.Errorf("rules of a webhook: %v %v %v %v", rs, paths, incomplete, err)
	}
}

// TestCaches checks that responses are cached by the whole review, and that long reviews and errors are not cached.
func TestCaches(t *testing.T) {
	h := newWebhook(t)
	chain, _, _ := build(t, options.Authorization{ConfigFile: file(t, h.configuration("    authorizedTTL: 5m\n    unauthorizedTTL: 5m", ""))})
	calls := func(a *authorize.Attributes) int {
		t.Helper()
		before := len(h.calls())
		for range 3 {
			if _, _, err := chain.Authorize(t.Context(), a); err != nil {
				t.Fatal(err)
			}
		}
		return len(h.calls()) - before
	}
	h.does(says(authorizationv1.SubjectAccessReviewStatus{Allowed: true}))
	if n := calls(pods("a")); n != 1 {
		t.Errorf("a yes was asked for %d times", n)
	}
	if d, _, _ := chain.Authorize(t.Context(), pods("a")); d != authorize.Allow {
		t.Errorf("from the cache: %v", d)
	}
	other := pods("a")
	other.User = &user.DefaultInfo{Name: "jane", UID: "8", Groups: jane.Groups, Extra: jane.Extra}
	if n := calls(other); n != 1 {
		t.Errorf("another uid was asked for %d times", n)
	}
	other.User = &user.DefaultInfo{Name: "jane", UID: "7", Groups: jane.Groups, Extra: map[string][]string{"k": {"w"}}}
	if n := calls(other); n != 1 {
		t.Errorf("another extra was asked for %d times", n)
	}
	narrow := pods("a")
	narrow.Select("a=b", "")
	if n := calls(narrow); n != 1 {
		t.Errorf("another selector was asked for %d times", n)
	}
	h.does(says(authorizationv1.SubjectAccessReviewStatus{}))
	if n := calls(pods("b")); n != 1 {
		t.Errorf("a no was asked for %d times", n)
	}
	if n := calls(pods(strings.Repeat("x", 10_000))); n != 3 {
		t.Errorf("a long question was asked %d times, want each time", n)
	}
	// without the caches, each time
	none, _, _ := build(t, options.Authorization{ConfigFile: file(t,
		h.configuration("    authorizedTTL: 5m\n    unauthorizedTTL: 5m\n    cacheAuthorizedRequests: false\n    cacheUnauthorizedRequests: false", ""))})
	before := len(h.calls())
	for range 2 {
		if _, _, err := none.Authorize(t.Context(), pods("b")); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(h.calls()) - before; n != 2 {
		t.Errorf("without caches a question was asked %d times", n)
	}
}

// TestMatchConditions checks that a false condition skips the webhook, even beside an error, and that an error alone
// applies the failure policy.
func TestMatchConditions(t *testing.T) {
	h := newWebhook(t)
	h.does(says(authorizationv1.SubjectAccessReviewStatus{Allowed: true}))
	text := h.configuration(`    matchConditions:
    - expression: "request.resourceAttributes.namespace == 'ns'"
    - expression: "request.user == 'jane'"`, "")
	deny := strings.Replace(text, "failurePolicy: NoOpinion", "failurePolicy: Deny", 1)
	chain, _, _ := build(t, options.Authorization{ConfigFile: file(t, text)})
	strict, _, _ := build(t, options.Authorization{ConfigFile: file(t, deny)})
	other := pods("x")
	other.Namespace = "other"
	path := &authorize.Attributes{User: jane, Verb: "get", Path: "/metrics"} // without resourceAttributes: the first is an error
	joes := &authorize.Attributes{User: &user.DefaultInfo{Name: "joe"}, Verb: "get", Path: "/metrics"}
	for _, c := range []struct {
		name  string
		chain *Chain
		a     *authorize.Attributes
		d     authorize.Decision
		err   bool
		calls int
	}{
		{"all true", chain, pods("x"), authorize.Allow, false, 1},
		{"one false", chain, other, authorize.NoOpinion, false, 0},
		{"an error, no opinion", chain, path, authorize.NoOpinion, true, 0},
		{"an error, deny", strict, path, authorize.Deny, true, 0},
		{"an error and a false one", strict, joes, authorize.NoOpinion, false, 0},
	} {
		before := len(h.calls())
		d, _, err := c.chain.Authorize(t.Context(), c.a)
		if d != c.d || (err != nil) != c.err || len(h.calls())-before != c.calls {
			t.Errorf("%s: got %v %v after %d calls", c.name, d, err, len(h.calls())-before)
		}
	}
	of := map[string]string{"type": "Webhook", "name": "hook"}
	if n := count(t, chain.Metrics(), "apiserver_authorization_match_condition_exclusions_total", of); n != 1 {
		t.Errorf("counted %v exclusions", n)
	}
	if n := count(t, chain.Metrics(), "apiserver_authorization_match_condition_evaluation_errors_total", of); n != 1 {
		t.Errorf("counted %v errors", n)
	}
	if n := count(t, chain.Metrics(), "apiserver_authorization_match_condition_evaluation_seconds", of); n != 3 {
		t.Errorf("timed %v evaluations", n)
	}
	bad := strings.Replace(text, "request.user == 'jane'", "request.nothing", 1)
	if _, err := Load(options.Authorization{ConfigFile: file(t, bad)}, nil); err == nil ||
		!strings.Contains(err.Error(), "matchConditions[1].expression") {
		t.Errorf("an expression that does not compile: %v", err)
	}
}

// TestReload checks that changes of the file take effect. A file that is invalid, or that adds or removes types that
// need data from the start, changes nothing, is logged and counted.
func TestReload(t *testing.T) {
	h := newWebhook(t)
	h.does(says(authorizationv1.SubjectAccessReviewStatus{Denied: true, Reason: "new"}))
	const head = "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: AuthorizationConfiguration\nauthorizers:\n"
	const deny, allow = "- {type: AlwaysDeny, name: alwaysdeny}\n", "- {type: AlwaysAllow, name: alwaysallow}\n"
	path := file(t, head+"- {type: RBAC, name: rbac}\n"+deny)
	chain, ledger, log := build(t, options.Authorization{ConfigFile: path})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- chain.Run(ctx) }()
	decide := func() string {
		t.Helper()
		d, reason, err := chain.Authorize(t.Context(), pods("x"))
		return fmt.Sprint(d, reason, err)
	}
	old := decide()
	put := func(text string) { // by renaming, so that a partial file is never read
		t.Helper()
		must(t, os.WriteFile(path+".new", []byte(text), 0o600))
		must(t, os.Rename(path+".new", path))
	}
	for _, bad := range []struct{ text, says string }{
		{"nonsense", "failed to load AuthorizationConfiguration"},
		{head + allow, "missing required types: [AlwaysDeny RBAC]"},
		{head + "- {type: RBAC, name: rbac}\n- {type: Node, name: node}\n" + deny,
			"authorizer type Node is not allowed if it was not enabled at initial server startup"},
		{head + "- {type: RBAC, name: rbac}\n- {type: ABAC, name: abac}\n" + deny, "authorizer type ABAC is not allowed"},
		{strings.Replace(h.configuration("", "- {type: RBAC, name: rbac}\n"+deny), h.kubeconfig, "/does/not/exist", 1), "no such file"},
	} {
		put(bad.text)
		log.await(t, "level=ERROR", "keeping the previous one", bad.says)
		if now := decide(); now != old {
			t.Errorf("%s: the decision became %s", bad.says, now)
		}
	}
	of := map[string]string{"status": "failure", "apiserver_id_hash": hash([]byte("me"))}
	if n := count(t, chain.Metrics(), "apiserver_authorization_config_controller_automatic_reloads_total", of); n != 5 {
		t.Errorf("counted %v failures", n)
	}
	good := h.configuration("", "- {type: RBAC, name: rbac}\n"+deny)
	put(good)
	log.await(t, "level=INFO", "Reloaded the authorization configuration", "authorizers=3")
	if d, reason, err := chain.Authorize(t.Context(), pods("x")); d != authorize.Deny || reason != "new" || err != nil {
		t.Errorf("after the reload: %v %q %v", d, reason, err)
	}
	of["status"] = "success"
	if n := count(t, chain.Metrics(), "apiserver_authorization_config_controller_automatic_reloads_total", of); n != 1 {
		t.Errorf("counted %v successes", n)
	}
	info := map[string]string{"apiserver_id_hash": hash([]byte("me")), "hash": hash([]byte(good))}
	if n := count(t, chain.Metrics(), "apiserver_authorization_config_controller_last_config_info", info); n != 1 {
		t.Errorf("the newest configuration is not told of")
	}
	if e := ledger.Snapshot(); len(e) != 1 || e[0].Where != path {
		t.Errorf("the ledger has %+v", e)
	}
	cancel()
	must(t, <-ended)
	if d := cmp.Diff([]string{"AlwaysDeny", "RBAC"}, chain.required); d != "" {
		t.Errorf("required types: %s", d)
	}
}

// FuzzConfiguration checks that no configuration panics.
func FuzzConfiguration(f *testing.F) {
	f.Add([]byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: [{type: RBAC, name: rbac}]\n"))
	f.Add([]byte(`{"apiVersion":"apiserver.config.k8s.io/v1alpha1","kind":"AuthorizationConfiguration","authorizers":[{"type":"Webhook","name":"a","webhook":{"matchConditions":[{"expression":"request.user"}]}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := &Settings{compiler: onceCompiler()}
		c, err := s.parse(data, []string{"RBAC"})
		if err == nil && len(c.Authorizers) == 0 {
			t.Errorf("nobody authorizes by %q", data)
		}
	})
}
