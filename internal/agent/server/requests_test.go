// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

// checkpoints is a node that makes checkpoints.
type checkpoints struct {
	*fakeNode
	asked []int64
	fail  error
}

func (c *checkpoints) Checkpoint(_ context.Context, t podspec.Target, timeout int64) (string, error) {
	c.asked = append(c.asked, timeout)
	return "/checkpoints/" + t.Namespace + "-" + t.Pod + "-" + t.Container, c.fail
}

func TestCheckpoints(t *testing.T) {
	node := &checkpoints{fakeNode: newFakeNode(t)}
	s := New(node, Options{})
	for _, c := range []struct {
		path, want string
		fail       error
	}{
		{"default/q/c", "404 pod does not exist\n", nil},
		{"default/p/d", "404 container d does not exist\n", nil},
		{"default/p/c?timeout=x", "404 cannot parse value of timeout parameter\n", nil},
		{"default/p/c?timeout=3&timeout=7", `200 {"items":["/checkpoints/default-p-c"]}` + "\n", nil},
		{"default/p/c", "500 checkpointing of default/p/c failed (no)\n", errors.New("no")},
	} {
		node.fail = c.fail
		w := httptest.NewRecorder()
		s.mux.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/checkpoint/"+c.path, nil))
		if got := strconv.Itoa(w.Code) + " " + w.Body.String(); got != c.want {
			t.Errorf("%s: %q, want %q", c.path, got, c.want)
		}
	}
	if !slices.Equal(node.asked, []int64{7, 0}) {
		t.Errorf("timeouts %v", node.asked)
	}
}

func TestRequestsAreCounted(t *testing.T) {
	m := NewRequestMetrics()
	ok := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	for _, line := range []string{
		"GET /metrics", "GET /metrics/probes", "GET /metrics/x", "POST /exec/a/b/c", "GET /pods", "GET /nothing", "EAT /pods", "GET /",
		"POST /portForward/a/b",
	} {
		method, path, _ := strings.Cut(line, " ")
		m.serve(ok, httptest.NewRecorder(), httptest.NewRequest(method, path, nil), time.Now)
	}
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		if f.GetName() != "kubelet_http_requests_total" {
			continue
		}
		for _, metric := range f.Metric {
			var labels []string
			for _, l := range metric.Label {
				labels = append(labels, l.GetValue())
			}
			got = append(got, strings.Join(labels, " "))
		}
	}
	want := []string{
		"false GET metrics readwrite", "false GET metrics/probes readwrite", "false GET other readwrite", "false GET pods readwrite",
		"false POST portForward readwrite", "false other pods readwrite", "true POST exec readwrite",
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}
