// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package peerproxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// echoes is another server, which upgrades connections to whatever a client wants, and sends back what it gets.
func echoes(t *testing.T, seen chan<- http.Header) *httptest.Server {
	t.Helper()
	o := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header
		if r.URL.Query().Get("refuse") != "" {
			http.Error(w, "no such pod", http.StatusNotFound)
			return
		}
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
		_, _ = io.Copy(c, rw)
	}))
	o.EnableHTTP2 = true
	o.StartTLS()
	t.Cleanup(o.Close)
	return o
}

// TestProxyUpgrades: requests that upgrade their connection, as exec, attach, port-forward and watches over WebSocket do, are forwarded
// with the client's name, past a server that cannot be reached. Both ends talk until one of them, or the server, ends. A refusal is passed
// on.
func TestProxyUpgrades(t *testing.T) {
	seen := make(chan http.Header, 1)
	o := echoes(t, seen)
	roots := x509.NewCertPool()
	roots.AddCert(o.Certificate())
	p := New(Options{ID: "apiserver-a", TLS: &tls.Config{RootCAs: roots, ServerName: "example.com"}})
	end, stop := context.WithCancel(t.Context())
	defer stop()
	serves := map[schema.GroupVersionResource]bool{jobs: true}
	p.set("apiserver-b", &Server{ID: "apiserver-b", Address: netip.MustParseAddrPort(o.Listener.Addr().String()), resources: serves})
	p.set("apiserver-c", &Server{ID: "apiserver-c", Address: netip.MustParseAddrPort("127.255.255.254:1"), resources: serves})
	served := make(chan struct{}, 100)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { served <- struct{}{} }()
		who := &user.DefaultInfo{Name: "alice", Groups: []string{"dev"}}
		if !p.Serve(w, r.WithContext(request.WithUser(r.Context(), who)), jobs, end) {
			t.Error("the request is not forwarded")
		}
	}))
	defer front.Close()
	open := func(protocol, query string) (net.Conn, *bufio.Reader, *http.Response) {
		t.Helper()
		c, err := net.Dial("tcp", front.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprintf(c, "GET /apis/batch/v1/namespaces/ns/jobs/j/attach?%s HTTP/1.1\r\nHost: front\r\nConnection: Upgrade\r\n"+
			"Upgrade: %s\r\nAuthorization: Bearer secret\r\nX-Remote-Group: system:masters\r\n\r\n", query, protocol)
		from := bufio.NewReader(c)
		response, err := http.ReadResponse(from, nil)
		if err != nil {
			t.Fatal(err)
		}
		return c, from, response
	}
	const rounds = 8 // servers are tried in a random order
	var last *bufio.Reader
	for i := range rounds {
		protocol := []string{"websocket", "SPDY/3.1"}[i%2]
		c, from, response := open(protocol, "stdin=true")
		got := <-seen
		if response.StatusCode != http.StatusSwitchingProtocols || response.Header.Get("Upgrade") != protocol {
			t.Fatalf("%s: %s %v", protocol, response.Status, response.Header)
		}
		if got.Get(Header) != "true" || got.Get("Authorization") != "" || got.Get("X-Remote-User") != "alice" ||
			strings.Join(got.Values("X-Remote-Group"), ",") != "dev" {
			t.Errorf("the other server gets %v", got)
		}
		for _, text := range []string{"hello\n", "again\n"} {
			if _, err := io.WriteString(c, text); err != nil {
				t.Fatal(err)
			}
			if back, err := from.ReadString('\n'); back != text || err != nil {
				t.Fatalf("%s: %q came back as %q, %v", protocol, text, back, err)
			}
		}
		last = from
	}
	_, _, response := open("websocket", "refuse=true")
	<-seen
	if body, _ := io.ReadAll(response.Body); response.StatusCode != http.StatusNotFound || string(body) != "no such pod\n" {
		t.Errorf("a refusal: %s %s", response.Status, body)
	}
	p.mu.Lock()
	p.set("apiserver-b", nil)
	p.mu.Unlock()
	_, _, response = open("websocket", "")
	if response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("without a server that can be reached: %s", response.Status)
	}
	stop()
	if n, err := last.ReadByte(); err == nil {
		t.Errorf("a connection goes on after the server's end with %q", n)
	}
	for range rounds + 2 {
		<-served
	}
	var counted dto.Metric
	if err := p.metrics.rerouted.WithLabelValues("101", "batch", "v1", "jobs").Write(&counted); err != nil {
		t.Fatal(err)
	}
	if n := counted.GetCounter().GetValue(); n != rounds+1 { // with the refusal
		t.Errorf("the metric counts %v upgrades", n)
	}
}
