// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"
)

// TestHealthz tells a story of a proxy over HTTP; times are seconds of it.
func TestHealthz(t *testing.T) {
	start := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	now := testingclock.NewFakePassiveClock(start)
	metrics, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	h := NewHealth(60*time.Second, now, metrics)
	server := httptest.NewServer(h.Handler())
	defer server.Close()
	get := func(path string) (int, string) {
		t.Helper()
		r, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		if r.Header.Get("Content-Type") != "application/json" || r.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: headers %v", path, r.Header)
		}
		return r.StatusCode, string(body)
	}
	at := func(seconds int) { now.SetTime(start.Add(time.Duration(seconds) * time.Second)) }
	time := func(seconds int) string {
		text, err := json.Marshal(start.Add(time.Duration(seconds) * time.Second))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	step := func(what, path string, code int, body string) {
		t.Helper()
		gotCode, got := get(path)
		if diff := cmp.Diff(body, got); gotCode != code || diff != "" {
			t.Errorf("%s: %s says %d, want %d: %s", what, path, gotCode, code, diff)
		}
	}
	never := `"0001-01-01T00:00:00Z"`
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here"}}
	both := []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}

	step("nothing is known", "/livez", 200, `{"lastUpdated":`+time(0)+`,"currentTime":`+time(0)+`,"healthy":true}`)
	step("nothing is known", "/healthz", 503, `{"lastUpdated":`+never+`,"currentTime":`+time(0)+`,"nodeEligible":false,"healthy":true}`)
	h.see(node, true)
	h.serve(both, now.Now())
	at(61)
	step("nothing was ever written", "/livez", 503, `{"lastUpdated":`+never+`,"currentTime":`+time(61)+
		`,"healthy":false,"status":{"IPv4":{"lastUpdated":`+never+`,"healthy":false},"IPv6":{"lastUpdated":`+never+`,"healthy":false}}}`)
	h.begin()
	at(70)
	h.wrote(corev1.IPv4Protocol, now.Now())
	h.wrote(corev1.IPv6Protocol, now.Now())
	at(1000)
	well := func(path, eligible string) {
		t.Helper()
		step("all is written", path, 200, `{"lastUpdated":`+time(1000)+`,"currentTime":`+time(1000)+eligible+
			`,"healthy":true,"status":{"IPv4":{"lastUpdated":`+time(70)+`,"healthy":true},"IPv6":{"lastUpdated":`+time(70)+`,"healthy":true}}}`)
	}
	well("/livez", "")
	well("/healthz", `,"nodeEligible":true`)

	// A change of which one family is not written, and one that comes meanwhile.
	h.heard(now.Now())
	h.begin()
	h.heard(now.Now())
	h.wrote(corev1.IPv4Protocol, now.Now())
	at(1059)
	if code, body := get("/healthz"); code != 200 {
		t.Errorf("a change waits, but not long: %d %s", code, body)
	}
	h.begin()
	h.wrote(corev1.IPv4Protocol, now.Now())
	at(1060)
	step("a family is late", "/healthz", 503, `{"lastUpdated":`+time(1059)+`,"currentTime":`+time(1060)+
		`,"nodeEligible":true,"healthy":false,"status":{"IPv4":{"lastUpdated":`+time(1059)+`,"healthy":true},"IPv6":{"lastUpdated":`+time(70)+
		`,"healthy":false}}}`)
	h.begin()
	h.wrote(corev1.IPv6Protocol, now.Now())
	if code, body := get("/livez"); code != 200 {
		t.Errorf("it was written: %d %s", code, body)
	}

	// A node that is being taken away is to have no connections; that is no failure of the proxy.
	for what, change := range map[string]func(n *corev1.Node) (there bool){
		"tainted":  func(n *corev1.Node) bool { n.Spec.Taints = []corev1.Taint{{Key: leavingTaint}}; return true },
		"deleting": func(n *corev1.Node) bool { n.DeletionTimestamp = &metav1.Time{Time: start}; return true },
		"gone":     func(*corev1.Node) bool { return false },
	} {
		leaving := node.DeepCopy()
		h.see(leaving, change(leaving))
		if code, body := get("/healthz"); code != 503 || !strings.Contains(body, `"nodeEligible":false,"healthy":true`) {
			t.Errorf("%s: %d %s", what, code, body)
		}
		if code, body := get("/livez"); code != 200 || strings.Contains(body, "nodeEligible") {
			t.Errorf("%s: %d %s", what, code, body)
		}
	}
	h.see(node, true)
	if code, body := get("/healthz"); code != 200 {
		t.Errorf("it stays: %d %s", code, body)
	}
}

func TestPages(t *testing.T) {
	metrics, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	h := NewHealth(time.Minute, testingclock.NewFakePassiveClock(time.Unix(0, 0)), metrics)
	h.Handler().ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/livez", nil))
	for profiling, code := range map[bool]int{false: 404, true: 200} {
		pages := Pages{Mode: func() string { return "nftables" }, Metrics: metrics, Configuration: map[string]string{"mode": "iptables"},
			Profiling: profiling}.Handler()
		for path, want := range map[string]struct {
			code       int
			text, kind string
		}{
			"/healthz":            {200, "ok", "text/plain; charset=utf-8"},
			"/proxyMode":          {200, "nftables", "text/plain; charset=utf-8"},
			"/configz":            {200, `{"kubeproxy.config.k8s.io":{"mode":"iptables"}}`, "application/json"},
			"/metrics":            {200, `kubeproxy_proxy_livez_total{code="200"} 1`, "text/plain"},
			"/debug/pprof/symbol": {code, "", ""},
			"/nothing":            {404, "", ""},
		} {
			w := httptest.NewRecorder()
			pages.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			if w.Code != want.code || !strings.Contains(w.Body.String(), want.text) ||
				!strings.HasPrefix(w.Header().Get("Content-Type"), want.kind) {
				t.Errorf("profiling %v, %s: %d %s %.300s", profiling, path, w.Code, w.Header().Get("Content-Type"), w.Body)
			}
		}
	}
}
