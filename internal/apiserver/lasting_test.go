// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/internal/apiserver/audit"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
)

// auditLog receives audit events, one a line.
type auditLog struct {
	mu    sync.Mutex
	lines [][]byte
	more  *sync.Cond
}

func (l *auditLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, bytes.Clone(line))
	l.more.Broadcast()
	return len(line), nil
}

// await waits until there are n events of a stage of watches, and returns the last of them.
func (l *auditLog) await(t *testing.T, stage auditinternal.Stage, n int) (last auditinternal.Event) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		found := 0
		for _, line := range l.lines {
			var e auditinternal.Event
			if err := json.Unmarshal(line, &e); err != nil {
				t.Fatal(err)
			}
			if e.Verb == "watch" && e.Stage == stage {
				found++
				last = e
			}
		}
		if found >= n {
			return last
		}
		l.more.Wait()
	}
}

// watchingGoroutines counts the goroutines of watches.
func watchingGoroutines() int {
	buf := make([]byte, 16<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), "verbs.(*watching).")
}

// TestWatchesWaitWithoutGoroutines checks that watches over HTTP/2 that wait for events take no goroutine, and that everything that
// ends with a request ends with them: their share of their user's watches, the gauge, the count of watches by kind, and the audit event.
func TestWatchesWaitWithoutGoroutines(t *testing.T) {
	const n = 20
	log := &auditLog{}
	log.more = sync.NewCond(&log.mu)
	limit := n
	o := Options{Audit: audit.New(&auditinternal.Policy{Rules: []auditinternal.PolicyRule{{Level: auditinternal.LevelMetadata}}},
		slog.New(slog.DiscardHandler), audit.NewLog(log, audit.LogOptions{Mode: audit.Blocking}))}
	o.FlowControl.Bounds.Watches = &limit
	o.Authenticators = []authenticator.Request{authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: &user.DefaultInfo{Name: "jane"}}, r.Header.Get("Authorization") == "Bearer jane", nil
	})}
	o.Authorizers = []authorize.Authorizer{authorize.Func(func(context.Context, *authorize.Attributes) (authorize.Decision, string, error) {
		return authorize.Allow, "", nil
	})}
	f := startWith(t, o)
	jane := &rest.Config{Host: f.tls.Host, BearerToken: "jane", TLSClientConfig: rest.TLSClientConfig{CAData: f.tls.CAData}}
	client, err := rest.HTTPClientFor(jane)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	watch := func(query string) (*http.Response, context.CancelFunc) {
		ctx, cancel := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, f.tls.Host+"/api/v1/namespaces/ns/configmaps?watch=true&"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			cancel()
			_ = answer.Body.Close()
		})
		return answer, cancel
	}
	gauge := func() string {
		w := as(f.Server, "root", "GET", "/metrics", "")
		for line := range strings.Lines(w.Body.String()) {
			if strings.HasPrefix(line, "apiserver_longrunning_requests{") && strings.Contains(line, `resource="configmaps"`) {
				return strings.TrimSpace(line[strings.LastIndex(line, " "):])
			}
		}
		return ""
	}
	var all []*http.Response
	var leave []context.CancelFunc
	for range n {
		answer, cancel := watch("")
		if answer.StatusCode != http.StatusOK || answer.ProtoMajor != 2 {
			t.Fatalf("watch: %s %s", answer.Proto, answer.Status)
		}
		all, leave = append(all, answer), append(leave, cancel)
	}
	for watchingGoroutines() > 0 { // they have sent their headers, and are about to wait
		runtime.Gosched()
	}
	if got := gauge(); got != fmt.Sprint(n) {
		t.Errorf("%s long-running requests while %d watches run", got, n)
	}
	if answer, _ := watch(""); answer.StatusCode != http.StatusTooManyRequests {
		t.Errorf("a watch more than jane may have: %s", answer.Status)
	}
	log.await(t, auditinternal.StageResponseStarted, n)

	maps := kubernetes.NewForConfigOrDie(f.tls).CoreV1().ConfigMaps("ns")
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i, answer := range all {
		line, err := bufio.NewReader(answer.Body).ReadString('\n')
		if err != nil || !strings.Contains(line, `"ADDED"`) {
			t.Fatalf("watch %d got %q, %v", i, line, err)
		}
	}
	for _, end := range leave {
		end()
	}
	if e := log.await(t, auditinternal.StageResponseComplete, n+1); e.ResponseStatus == nil || e.ResponseStatus.Code != http.StatusOK {
		t.Errorf("the end of a watch is recorded as %+v", e.ResponseStatus)
	}
	for gauge() != "0" { // it ends after the event was recorded
		runtime.Gosched()
	}
	last, _ := watch("timeoutSeconds=1")
	if b, err := io.ReadAll(last.Body); err != nil || last.StatusCode != http.StatusOK || !bytes.Contains(b, []byte(`"ADDED"`)) {
		t.Errorf("a watch that times out: %s, %q, %v", last.Status, b, err)
	}
}

// TestWatchesEndWithTheServer checks that watches that wait end when their server does.
func TestWatchesEndWithTheServer(t *testing.T) {
	var answers []*http.Response
	t.Run("server", func(t *testing.T) {
		f := start(t)
		client, err := rest.HTTPClientFor(f.tls)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			r, err := http.NewRequest(http.MethodGet, f.tls.Host+"/api/v1/configmaps?watch=true", nil)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			answers = append(answers, answer)
		}
	})
	for _, answer := range answers {
		if b, err := io.ReadAll(answer.Body); err != nil || len(b) > 0 {
			t.Errorf("the watch ended with %q, %v", b, err)
		}
		_ = answer.Body.Close()
	}
}
