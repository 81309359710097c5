// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mortise-dev/mortise/bench/load"
)

func TestCount(t *testing.T) {
	pages := map[string]string{
		"/one":           `{"metadata":{"continue":"c","remainingItemCount":41},"items":[{}]}`,
		"/none":          `{"metadata":{},"items":[]}`,
		"/paged":         `{"metadata":{"continue":"a/b"},"items":[{},{}]}`,
		"/paged&c=a%2Fb": `{"metadata":{"continue":"c"},"items":[{},{}]}`,
		"/paged&c=c":     `{"metadata":{},"items":[{}]}`,
		"/other":         `{"metadata":{"continue":"gone"},"items":[{}]}`,
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := pages[strings.Replace(r.RequestURI, "&continue=", "&c=", 1)]
		if !ok {
			w.WriteHeader(http.StatusGone)
		}
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(s.Close)
	for _, c := range []struct {
		path string
		n    int
		ok   bool
	}{{"/one", 42, true}, {"/none", 0, true}, {"/paged", 5, true}, {"/other", 0, false}} {
		if n, err := count(t.Context(), s.Client(), s.URL+c.path); n != c.n || (err == nil) != c.ok {
			t.Errorf("%s: %d, %v; want %d", c.path, n, err, c.n)
		}
	}
}

// answers is a server without a network.
type answers func(query string) string

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(a(r.URL.RawQuery))), Request: r}, nil
}

func TestUntilWritten(t *testing.T) {
	for _, c := range []struct {
		name   string
		mixed  bool
		rate   int // events a second, of which there are most
		most   int
		events int
		after  time.Duration
	}{
		{name: "all there", rate: 1000_000, most: 100, events: 100, after: 100 * time.Millisecond},
		{name: "later", rate: 100, most: 100, events: 100, after: time.Second},
		{name: "more than the pods", rate: 1000_000, most: 120, events: 120, after: 100 * time.Millisecond},
		{name: "some are lost", rate: 100, most: 50, events: 50, after: 500 * time.Millisecond},
		{name: "slowly, but they come", rate: 1, most: 100, events: 100, after: 100 * time.Second},
		{name: "none", most: 0},
		{name: "among others", mixed: true, rate: 90, most: 100, events: 100, after: 2 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				client := &http.Client{Transport: answers(func(query string) string {
					n := min(c.most, int(time.Since(began).Seconds()*float64(c.rate)+0.001))
					if strings.Contains(query, "reason%3DScheduled") != c.mixed {
						t.Errorf("listed by %s", query)
					}
					switch {
					case n == 0:
						return `{}`
					case c.mixed:
						return `{"items":[{}` + strings.Repeat(",{}", n-1) + `]}`
					}
					return fmt.Sprintf(`{"metadata":{"remainingItemCount":%d},"items":[{}]}`, n-1)
				})}
				w, err := untilWritten(t.Context(), &load.Target{}, client, "http://server/events", 100, c.mixed)
				if err != nil {
					t.Fatal(err)
				}
				if took := w.at.Sub(began); w.events != c.events || took != c.after {
					t.Errorf("%d events after %v, want %d after %v", w.events, took, c.events, c.after)
				}
				if spent := time.Since(began) - c.after; w.events < 100 && (spent < 5*time.Second || spent > 7*time.Second) {
					t.Errorf("gave up %v after the last", spent)
				}
			})
		})
	}
}
