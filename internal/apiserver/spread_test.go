// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
)

// TestSpread: connections that are open when another server appears are left at the next request, once, and later ones are not.
func TestSpread(t *testing.T) {
	var s Spread
	var opened atomic.Int32
	answer := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }
	server := httptest.NewUnstartedServer(s.handler(http.HandlerFunc(answer)))
	server.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		opened.Add(1)
		return s.begin(ctx)
	}
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	ask := func(times int) {
		t.Helper()
		for range times {
			r, err := server.Client().Get(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			if r.ProtoMajor != 2 {
				t.Fatalf("%s", r.Proto)
			}
			_, _ = io.Copy(io.Discard, r.Body)
			r.Body.Close()
		}
	}
	for n, c := range []struct {
		servers int
		want    int32 // connections so far
	}{{1, 1}, {2, 2}, {3, 3}, {3, 3}, {1, 3}, {3, 4}} {
		s.Servers(c.servers)
		ask(4)
		if got := opened.Load(); got != c.want {
			t.Errorf("%d: %d connections, want %d", n, got, c.want)
		}
	}
}
