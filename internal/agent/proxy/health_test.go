// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestHealthMoves: where node ports are on the node's own addresses, health ports go where these go.
func TestHealthMoves(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var well atomic.Bool
	well.Store(true)
	h := &health{network: "tcp4", hosts: []string{"127.0.0.1"}, log: slog.New(slog.DiscardHandler), well: &well,
		servers: map[types.NamespacedName]*healthServer{}}
	defer h.end()
	want := map[types.NamespacedName]*plan{{Name: "s"}: {healthPort: int32(port), healthy: 1}}
	answers := func(host string) bool {
		c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		r, err := c.Get(fmt.Sprintf("http://%s:%d/", host, port))
		if err != nil {
			return false
		}
		_ = r.Body.Close()
		return r.StatusCode == http.StatusOK
	}
	for _, hosts := range [][]string{{"127.0.0.1"}, {"127.0.0.2"}, {"127.0.0.2", "127.0.0.1"}, nil} {
		h.move(hosts)
		if err := h.sync(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		is := map[string]bool{}
		for _, host := range hosts {
			is[host] = true
		}
		for _, host := range []string{"127.0.0.1", "127.0.0.2"} {
			if answers(host) != is[host] {
				t.Errorf("at %q, it answers at %s: %v", hosts, host, !is[host])
			}
		}
	}
}
