// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAnswers(t *testing.T) {
	broken := errors.New("disk is full")
	pass := func(context.Context) error { return nil }
	h := New(slog.New(slog.DiscardHandler),
		Check{Name: "ping", Run: pass},
		Check{Name: "etcd", Run: func(context.Context) error { return broken }},
		Check{Name: "poststarthook/rbac/bootstrap-roles", Run: pass},
		Check{Name: "shutdown", Run: pass, Only: []Root{Readyz}},
	)
	const hook = "[+]poststarthook/rbac/bootstrap-roles ok\n"
	for _, c := range []struct {
		path string
		code int
		body string
	}{
		{"/livez", 500, "[+]ping ok\n[-]etcd failed: reason withheld\n" + hook + "livez check failed\n"},
		{"/readyz?verbose", 500, "[+]ping ok\n[-]etcd failed: reason withheld\n" + hook + "[+]shutdown ok\nreadyz check failed\n"},
		{"/livez?exclude=etcd", 200, "ok"},
		{"/healthz?exclude=etcd&verbose", 200, "[+]ping ok\n[+]etcd excluded: ok\n" + hook + "healthz check passed\n"},
		{"/livez?exclude=etcd&exclude=b&exclude=a&exclude=b&verbose", 200, "[+]ping ok\n[+]etcd excluded: ok\n" + hook +
			"warn: some health checks cannot be excluded: no matches for \"a\",\"b\"\nlivez check passed\n"},
		{"/livez?exclude=shutdown,etcd", 500, "[+]ping ok\n[-]etcd failed: reason withheld\n" + hook +
			"warn: some health checks cannot be excluded: no matches for \"shutdown,etcd\"\nlivez check failed\n"},
		{"/livez/ping", 200, "ok"},
		{"/livez/etcd", 500, "internal server error: disk is full\n"},
		{"/livez/poststarthook/rbac/bootstrap-roles", 200, "ok"},
		{"/livez/shutdown", 404, "404 page not found\n"},
		{"/readyz/shutdown", 200, "ok"},
		{"/livez/", 404, "404 page not found\n"},
		{"/livez/ping/", 404, "404 page not found\n"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", c.path, nil))
		if w.Code != c.code || w.Body.String() != c.body {
			t.Errorf("%s: %d, want %d:\n%s", c.path, w.Code, c.code, cmp.Diff(c.body, w.Body.String()))
		}
	}
	want := []Result{
		{"ping", Healthz, 1, 0, true}, {"ping", Livez, 4, 0, true}, {"ping", Readyz, 1, 0, true},
		{"etcd", Livez, 0, 2, false}, {"etcd", Readyz, 0, 1, false},
		{"poststarthook/rbac/bootstrap-roles", Healthz, 1, 0, true}, {"poststarthook/rbac/bootstrap-roles", Livez, 4, 0, true},
		{"poststarthook/rbac/bootstrap-roles", Readyz, 1, 0, true}, {"shutdown", Readyz, 1, 0, true},
	}
	if diff := cmp.Diff(want, h.Results()); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	if got := len(h.Paths()); got != 3+4+3+3 {
		t.Errorf("%d paths: %v", got, h.Paths())
	}
}
