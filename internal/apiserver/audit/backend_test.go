// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
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

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
)

var quiet = slog.New(slog.DiscardHandler)

// policyOf is a policy of one rule.
func policyOf(level auditinternal.Level) *auditinternal.Policy {
	return &auditinternal.Policy{Rules: []auditinternal.PolicyRule{{Level: level}}}
}

// ask has an auditor serve one request.
func ask(a *Auditor, method, path string, answer http.HandlerFunc) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, path, nil)
	r = With(w, r)
	r = r.WithContext(a.With(r.Context()))
	at := &authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "jane"}, Verb: strings.ToLower(method), Path: path}
	a.Serve(w, r, at, time.Now(), false, answer)
	return w
}

func fine(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"kind":"Fine"}`) }

// receiver is a webhook over TLS.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	events []auditv1.Event
	posts  int
	got    chan int // how many events there are, after each post
	code   func(post int) int
}

func receive(t *testing.T, code func(post int) int) *receiver {
	r := &receiver{got: make(chan int, 1000), code: code}
	r.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		var l auditv1.EventList
		if err != nil || json.Unmarshal(body, &l) != nil || l.Kind != "EventList" || l.APIVersion != "audit.k8s.io/v1" ||
			q.Method != http.MethodPost || q.Header.Get("Content-Type") != "application/json" {
			t.Errorf("posted %s %v: %s", q.Method, q.Header, body)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.posts++
		if code != nil {
			if c := code(r.posts); c != http.StatusOK {
				http.Error(w, "down", c)
				return
			}
		}
		r.events = append(r.events, l.Items...)
		r.got <- len(r.events)
	}))
	t.Cleanup(r.Close)
	return r
}

// kubeconfig names the webhook.
func (r *receiver) kubeconfig(t *testing.T) string {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate().Raw})
	config := map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "x", "users": []any{},
		"clusters": []any{map[string]any{"name": "c", "cluster": map[string]any{"server": r.URL + "/sink", "certificate-authority-data": ca}}},
		"contexts": []any{map[string]any{"name": "x", "context": map[string]any{"cluster": "c"}}},
	}
	b, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "webhook.kubeconfig")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// start makes an auditor with a webhook and runs it; the function ends it.
func start(t *testing.T, r *receiver, o WebhookOptions) (*Auditor, *extension.Ledger, func()) {
	t.Helper()
	l := extension.NewLedger(clock.RealClock{})
	b, err := NewWebhook(r.kubeconfig(t), l, o)
	if err != nil {
		t.Fatal(err)
	}
	a := New(policyOf(auditinternal.LevelMetadata), quiet, b)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	return a, l, sync.OnceFunc(func() { cancel(); <-done })
}

func TestWebhookGetsBatches(t *testing.T) {
	r := receive(t, nil)
	a, l, stop := start(t, r, WebhookOptions{Mode: Batch, Buffer: 100, BatchSize: 4, BatchWait: time.Hour, Backoff: time.Millisecond})
	defer stop()
	if s := l.Snapshot(); len(s) != 1 || s[0].State != extension.Unused || !strings.HasSuffix(s[0].Where, "webhook.kubeconfig") ||
		s[0].Name != strings.TrimPrefix(r.URL, "https://") {
		t.Errorf("before any call the ledger has %+v", s)
	}
	for range 5 { // two events each: two batches of four, and two events that wait
		ask(a, "GET", "/x", fine)
	}
	for n := 0; n < 8; n = <-r.got {
	}
	stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.events) != 10 || r.posts != 3 {
		t.Errorf("%d events in %d posts, want 10 in 3: the last when the server ended", len(r.events), r.posts)
	}
	stages := map[auditv1.Stage]int{}
	for _, e := range r.events {
		stages[e.Stage]++
		if e.Kind != "" || e.User.Username != "jane" || e.RequestURI != "/x" {
			t.Errorf("got %+v", e)
		}
	}
	if stages["RequestReceived"] != 5 || stages["ResponseComplete"] != 5 {
		t.Errorf("stages %v", stages)
	}
	if s := l.Snapshot()[0]; s.State != extension.OK || s.Calls != 3 || !s.Certificate.Equal(r.Certificate().NotAfter) {
		t.Errorf("the ledger has %+v", s)
	}
}

func TestWebhookIsAskedAgain(t *testing.T) {
	r := receive(t, func(post int) int {
		if post < tries {
			return http.StatusBadRequest // whatever it says
		}
		return http.StatusOK
	})
	a, l, stop := start(t, r, WebhookOptions{Mode: Blocking, Backoff: time.Millisecond})
	defer stop()
	ask(a, "GET", "/x", fine)
	if s := l.Snapshot()[0]; s.Calls != tries+1 || s.Failures != tries-1 || len(r.events) != 2 {
		t.Errorf("the ledger has %+v, the webhook %d events", s, len(r.events))
	}
}

func TestDeadWebhook(t *testing.T) {
	dead := func(int) int { return http.StatusInternalServerError }
	t.Run("blocking", func(t *testing.T) {
		a, _, stop := start(t, receive(t, dead), WebhookOptions{Mode: Blocking, Backoff: time.Microsecond})
		defer stop()
		if w := ask(a, "GET", "/x", fine); w.Code != http.StatusOK {
			t.Errorf("answered %d", w.Code)
		}
		if got := lostBy(a); got["webhook"] != 2 || a.Counts().Rejected() != 0 {
			t.Errorf("counted %v", got)
		}
	})
	t.Run("strict", func(t *testing.T) {
		a, _, stop := start(t, receive(t, dead), WebhookOptions{Mode: BlockingStrict, Backoff: time.Microsecond})
		defer stop()
		w := ask(a, "POST", "/x<", func(http.ResponseWriter, *http.Request) { t.Error("what is not written down is not done") })
		if body := w.Body.String(); w.Code != http.StatusInternalServerError ||
			body != "Internal Server Error: \"/x&lt;\": failed to store audit event\n" {
			t.Errorf("answered %d %s", w.Code, body)
		}
		if a.Counts().Rejected() != 1 {
			t.Errorf("%d are counted as rejected", a.Counts().Rejected())
		}
	})
}

func lostBy(a *Auditor) map[string]int64 {
	out := map[string]int64{}
	a.Counts().Errors(func(plugin string, n int64) { out[plugin] = n })
	return out
}

// TestBatchNeverWaits fills a queue whose webhook does not answer: requests go on, what waits is bounded in number and bytes, and
// what is dropped is counted.
func TestBatchNeverWaits(t *testing.T) {
	for name, c := range map[string]struct {
		buffer, uri, requests int
	}{"many": {100, 10, 3000}, "large": {1 << 20, 1 << 20, 60}} {
		t.Run(name, func(t *testing.T) {
			hangs := make(chan struct{})
			r := receive(t, func(int) int { <-hangs; return http.StatusOK })
			a, _, stop := start(t, r, WebhookOptions{Mode: Batch, Buffer: c.buffer, BatchSize: 10, BatchWait: time.Millisecond,
				Backoff: time.Millisecond})
			uri := "/" + strings.Repeat("x", c.uri)
			for range c.requests {
				if w := ask(a, "GET", uri, fine); w.Code != http.StatusOK {
					t.Fatalf("answered %d", w.Code)
				}
			}
			q := a.backends[0].(*sender).queue
			if n := q.bytes.Load(); n > maxQueued {
				t.Errorf("%d bytes wait", n)
			}
			close(hangs)
			stop()
			r.mu.Lock()
			defer r.mu.Unlock()
			dropped := lostBy(a)["buffered"]
			if int64(len(r.events))+dropped != int64(2*c.requests) || dropped == 0 || a.Counts().Events() != int64(2*c.requests) {
				t.Errorf("%d events came and %d were dropped of %d", len(r.events), dropped, a.Counts().Events())
			}
			if n := q.bytes.Load(); n != 0 {
				t.Errorf("%d bytes still wait", n)
			}
		})
	}
}

func TestTruncation(t *testing.T) {
	var out bytes.Buffer
	a := New(policyOf(auditinternal.LevelRequestResponse), quiet,
		NewLog(&out, LogOptions{Mode: Blocking, Truncate: Truncate{Event: 2000, Batch: 1 << 20}}))
	ask(a, "GET", "/large", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"kind":"Large","data":"%s"}`, strings.Repeat("x", 4000))
	})
	if text := out.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, `"annotations":{"audit.k8s.io/truncated":"true"}`) ||
		strings.Contains(text, "xxx") {
		t.Errorf("logged\n%s", text)
	}
	out.Reset()
	ask(a, "GET", "/"+strings.Repeat("y", 4000), fine)
	if out.Len() != 0 || lostBy(a)["truncate"] != 2 {
		t.Errorf("an event that is too large in itself: %v, logged\n%s", lostBy(a), out.String())
	}
}

func TestLegacyLog(t *testing.T) {
	var out bytes.Buffer
	a := New(policyOf(auditinternal.LevelMetadata), quiet, NewLog(&out, LogOptions{Mode: Blocking, Legacy: true}))
	ask(a, "GET", "/x", fine)
	for _, want := range []string{` AUDIT: id="`,
		`" stage="RequestReceived" ip="192.0.2.1" method="get" user="jane" groups="<none>" as="<self>" asgroups="<lookup>" user-agent="" namespace="<none>" uri="/x" response="<deferred>"`, `response="200"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in\n%s", want, out.String())
		}
	}
}

func TestPanicsAreWrittenDown(t *testing.T) {
	var out bytes.Buffer
	a := New(policyOf(auditinternal.LevelMetadata), quiet, NewLog(&out, LogOptions{Mode: Blocking}))
	func() {
		defer func() {
			if p := recover(); p != "x" {
				t.Errorf("the panic did not go on: %v", p)
			}
		}()
		ask(a, "GET", "/x", func(http.ResponseWriter, *http.Request) { panic("x") })
	}()
	if !strings.Contains(out.String(), `"stage":"Panic"`) ||
		!strings.Contains(out.String(), `"message":"APIServer panic'd: x","reason":"InternalError","code":500`) {
		t.Errorf("logged\n%s", out.String())
	}
}

// TestStrictAnswersAfterTheEvent wants a write's last event in the log before its answer goes out.
func TestStrictAnswersAfterTheEvent(t *testing.T) {
	var out bytes.Buffer
	a := New(policyOf(auditinternal.LevelMetadata), quiet, NewLog(&out, LogOptions{Mode: BlockingStrict}))
	w := &watchful{ResponseRecorder: httptest.NewRecorder(), log: &out}
	r := httptest.NewRequest("POST", "/x", nil)
	r = With(w, r)
	r = r.WithContext(a.With(r.Context()))
	a.Serve(w, r, &authorizer.AttributesRecord{Verb: "create"}, time.Now(), false,
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, "made")
		}))
	if w.Code != http.StatusCreated || w.Body.String() != "made" || w.early {
		t.Errorf("answered %d %s, before the event: %v", w.Code, w.Body, w.early)
	}
}

// watchful reports whether an answer was sent before the log had its last event.
type watchful struct {
	*httptest.ResponseRecorder
	log   *bytes.Buffer
	early bool
}

func (w *watchful) WriteHeader(code int) {
	w.early = w.early || !bytes.Contains(w.log.Bytes(), []byte(`"stage":"ResponseComplete"`))
	w.ResponseRecorder.WriteHeader(code)
}

// TestBatchedLog is flushed when the server ends, and takes nothing more.
func TestBatchedLog(t *testing.T) {
	file, err := OpenFile(FileOptions{Path: filepath.Join(t.TempDir(), "a", "audit.log"), Log: quiet, Clock: clock.RealClock{}})
	if err != nil {
		t.Fatal(err)
	}
	a := New(policyOf(auditinternal.LevelMetadata), quiet, NewLog(file, LogOptions{Mode: Batch, Buffer: 5000}))
	ctx, cancel := context.WithCancel(t.Context())
	for range 1000 {
		ask(a, "GET", "/x", fine)
	}
	cancel()
	if err := a.Run(ctx); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file.o.Path)
	if err != nil || bytes.Count(text, []byte("\n")) != 2000 {
		t.Errorf("%d lines, %v", bytes.Count(text, []byte("\n")), err)
	}
	ask(a, "GET", "/late", fine)
	if got := lostBy(a)["buffered"]; got != 2 {
		t.Errorf("%d late events are counted as lost", got)
	}
}

func TestLostLog(t *testing.T) {
	a := New(policyOf(auditinternal.LevelMetadata), quiet, NewLog(full{}, LogOptions{Mode: Blocking}))
	if w := ask(a, "GET", "/x", fine); w.Code != http.StatusOK || lostBy(a)["log"] != 2 {
		t.Errorf("answered %d, lost %v", w.Code, lostBy(a))
	}
	a = New(policyOf(auditinternal.LevelMetadata), quiet, NewLog(full{}, LogOptions{Mode: BlockingStrict}))
	if w := ask(a, "GET", "/x", fine); w.Code != http.StatusInternalServerError || a.Counts().Rejected() != 1 {
		t.Errorf("strict: answered %d, rejected %d", w.Code, a.Counts().Rejected())
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// BenchmarkServe is what a request costs that is audited at level Metadata into a log.
func BenchmarkServe(b *testing.B) {
	file, err := OpenFile(FileOptions{Path: filepath.Join(b.TempDir(), "audit.log"), Log: quiet, Clock: clock.RealClock{}})
	if err != nil {
		b.Fatal(err)
	}
	a := New(policyOf(auditinternal.LevelMetadata), quiet, NewLog(file, LogOptions{Mode: Blocking}))
	r := httptest.NewRequest("POST", "/api/v1/namespaces/default/configmaps", nil)
	at := &authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "jane", Groups: []string{"a", "b"}}, Verb: "create",
		Resource: "configmaps", Namespace: "default", APIVersion: "v1", ResourceRequest: true}
	b.ReportAllocs()
	for b.Loop() {
		w := httptest.NewRecorder()
		r := With(w, r)
		r = r.WithContext(a.With(r.Context()))
		a.Serve(w, r, at, time.Now(), false, http.HandlerFunc(fine))
	}
}
