// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TestLibraries checks that the libraries' metrics appear beside the meter's own, which take precedence.
func TestLibraries(t *testing.T) {
	theirs := prometheus.NewRegistry()
	for _, name := range []string{"apiserver_request_total", "authentication_token_cache_request_total", "go_goroutines", "process_open_fds"} {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: "Theirs."})
		theirs.MustRegister(c)
	}
	m := New(time.Unix(1700000000, 0), Sources{Libraries: theirs})
	m.Request(Request{Verb: "GET", Code: 200}, time.Millisecond, 1)
	w := httptest.NewRecorder()
	m.Metrics(w, httptest.NewRequest("GET", "/metrics", nil))
	text := w.Body.String()
	if !strings.Contains(text, "\nauthentication_token_cache_request_total 0\n") {
		t.Error("the libraries' metric is not told")
	}
	for _, ours := range []string{"apiserver_request_total", "go_goroutines"} {
		if n := strings.Count(text, "# TYPE "+ours+" "); n != 1 || strings.Contains(text, "# HELP "+ours+" Theirs.") {
			t.Errorf("%s is told %d times", ours, n)
		}
	}
	w = httptest.NewRecorder()
	m.SLIs(w, httptest.NewRequest("GET", "/metrics/slis", nil))
	if strings.Contains(w.Body.String(), "token_cache") {
		t.Error("the libraries' metric is among the SLIs")
	}
}
