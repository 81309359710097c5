// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
)

// The read-only port serves what kubelet's does, to clients without credentials, and nothing else.
func TestReadOnly(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- ServeReadOnly(Options{})(ctx, newFakeNode(t), listener) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	for path, want := range map[string]int{
		"/healthz": 200, "/pods": 200, "/stats/summary": 200, "/metrics": 200, "/metrics/cadvisor": 200, "/metrics/resource": 200,
		"/containerLogs/default/p/c": 405, "/exec/default/p/c": 405, "/run/default/p/c": 405, "/attach/default/p/c": 405,
		"/portForward/default/p": 405, "/runningpods/": 405, "/logs/": 405, "/debug/pprof/": 405,
		"/configz": 404, "/statusz": 404, "/flagz": 404, "/checkpoint/default/p/c": 404, "/": 404,
	} {
		method := http.MethodGet
		if want == 405 || path == "/checkpoint/default/p/c" {
			method = http.MethodPost
		}
		request, err := http.NewRequestWithContext(ctx, method, "http://"+listener.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		r.Body.Close()
		if r.StatusCode != want || err != nil {
			t.Errorf("%s: %d %.80s %v, want %d", path, r.StatusCode, body, err, want)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
