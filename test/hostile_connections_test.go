// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/embed"
)

// dial opens a connection that speaks HTTP/1.1, up to the given point.
func (v *victim) dial(encrypted bool) net.Conn {
	v.t.Helper()
	u, err := url.Parse(v.config.Host)
	if err != nil {
		v.t.Fatal(err)
	}
	c, err := net.Dial("tcp", u.Host)
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() { c.Close() })
	if !encrypted {
		return c
	}
	config, err := rest.TLSConfigFor(v.config)
	if err != nil {
		v.t.Fatal(err)
	}
	config = config.Clone()
	config.NextProtos, config.ServerName = []string{"http/1.1"}, u.Hostname()
	secure := tls.Client(c, config)
	if err := secure.HandshakeContext(v.t.Context()); err != nil {
		v.t.Fatal(err)
	}
	return secure
}

// TestSlowClients holds connections open that say nothing, or half of something, and wants the server to serve others.
func TestSlowClients(t *testing.T) {
	v := newVictim(t)
	for range 1500 {
		v.dial(false)
	}
	v.stands()
	token := ""
	if v.config.BearerToken != "" {
		token = "Authorization: Bearer " + v.config.BearerToken + "\r\n"
	}
	for i := range 200 {
		if _, err := io.WriteString(v.dial(true), "GET /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nX-Slow: "); err != nil {
			t.Fatal(err)
		}
		slow := v.dial(true)
		if _, err := fmt.Fprintf(slow, "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\n%sContent-Type: application/json\r\nContent-Length: 3000000\r\n\r\n{\"metadata\":", token); err != nil {
			t.Fatal(err)
		}
		if i%50 == 0 {
			v.stands()
		}
	}
	v.stands()
}

// TestSlowReaders asks for large lists and does not read them: what waits to be read must not be kept for each. Lists as YAML are
// made whole, as upstream makes them, and are kept until the client is given up.
func TestSlowReaders(t *testing.T) {
	v := newVictim(t)
	for i := range 180 {
		m := fmt.Sprintf(`{"metadata":{"name":"large%d"},"data":{"a":%q}}`, i, strings.Repeat("x", 100_000))
		if code, body := v.say(request{method: "POST", path: "/api/v1/namespaces/default/configmaps",
			body: strings.NewReader(m)}); code != http.StatusCreated {
			t.Fatalf("%d %.300s", code, body)
		}
	}
	v.before = heap()
	token := ""
	if v.config.BearerToken != "" {
		token = "Authorization: Bearer " + v.config.BearerToken + "\r\n"
	}
	for _, media := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		for range 100 {
			conn := v.dial(true)
			if _, err := fmt.Fprintf(conn, "GET /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\n%sAccept: %s\r\n\r\n", token,
				media); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(conn, make([]byte, 100)); err != nil { // it has begun
				t.Fatal(err)
			}
		}
	}
	v.stands()
}

// TestHostileHeaders sends heads that are too large in one way or another.
func TestHostileHeaders(t *testing.T) {
	v := newVictim(t)
	const maps = "/api/v1/namespaces/default/configmaps"
	lines := func(n int) string {
		return many(n, func(i int) string { return fmt.Sprintf("X-Header-%d: %s\r\n", i, strings.Repeat("x", 40)) })
	}
	for name, c := range map[string]struct {
		head string
		want int
	}{
		"one large header":   {"GET /version HTTP/1.1\r\nHost: x\r\nX-Large: " + strings.Repeat("x", 2<<20) + "\r\n\r\n", 431},
		"many headers":       {"GET /version HTTP/1.1\r\nHost: x\r\n" + lines(40_000) + "\r\n", 431},
		"a long path":        {"GET /" + strings.Repeat("x", 2<<20) + " HTTP/1.1\r\nHost: x\r\n\r\n", 431},
		"no HTTP":            {"\x00\x01\x02\x03\r\n\r\n", 400},
		"no host":            {"GET /version HTTP/1.1\r\n\r\n", 400},
		"two lengths":        {"POST " + maps + " HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}", 400},
		"length and chunks":  {"POST /version HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 501},
		"a name with spaces": {"GET /version HTTP/1.1\r\nHost: x\r\nBad Header: x\r\n\r\n", 400},
	} {
		t.Run(name, func(t *testing.T) {
			conn := v.dial(true)
			go func() { _, _ = io.WriteString(conn, c.head) }() // the server may hang up meanwhile
			if err := conn.SetReadDeadline(time.Now().Add(mostTime)); err != nil {
				t.Fatal(err)
			}
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			if response.StatusCode != c.want {
				t.Errorf("answered %d, want %d", response.StatusCode, c.want)
			}
		})
	}
	for name, c := range map[string]struct {
		request
		want []int
	}{
		"one large header over HTTP/2": {request{method: "GET", path: maps, headers: map[string]string{"X-Large": strings.Repeat("x", 2<<20)}},
			[]int{0, 431}},
		"a long name": {request{method: "GET", path: maps + "/" + strings.Repeat("x", 500_000)}, []int{400, 404}},
		"deep path":   {request{method: "GET", path: "/apis" + strings.Repeat("/a", 200_000)}, []int{404}},
		"100,000 parameters": {request{method: "GET",
			path: maps + "?" + many(100_000, func(i int) string { return fmt.Sprintf("a%d&", i) })}, []int{200, 400}},
		"a selector of thousands": {request{method: "GET",
			path: maps + "?labelSelector=" + strings.TrimSuffix(many(20_000, func(i int) string { return fmt.Sprintf("k%d,", i) }), ",")},
			[]int{400}},
		"a set of thousands": {request{method: "GET",
			path: maps + "?labelSelector=a+in+(" + strings.TrimSuffix(many(60_000, func(i int) string { return fmt.Sprintf("v%d,", i) }), ",") +
				")"}, []int{400}},
		"fields of thousands": {request{method: "GET",
			path: maps + "?fieldSelector=" + strings.TrimSuffix(strings.Repeat("metadata.name%3Da,", 20_000), ",")}, []int{400}},
		"a long token": {request{method: "GET", path: maps + "?limit=1&continue=" + strings.Repeat("ZZ", 200_000)}, []int{400}},
		"thousands of media types": {request{method: "GET", path: maps,
			headers: map[string]string{"Accept": strings.Repeat("a/b;q=0.1,", 50_000) + "application/json"}}, []int{200, 406}},
		"a token beside a certificate": {request{method: "GET", path: maps,
			headers: map[string]string{"Authorization": "Bearer " + strings.Repeat("x.", 100_000)}}, []int{401}},
		"thousands of groups": {request{method: "GET", path: maps, headers: map[string]string{"Impersonate-User": strings.Repeat("u", 100_000)}},
			[]int{403}},
	} {
		t.Run(name, func(t *testing.T) {
			begun := time.Now()
			if code, body := v.say(c.request); !slices.Contains(c.want, code) {
				t.Errorf("answered %d, want %v: %.300s", code, c.want, body)
			}
			if took := time.Since(begun); took > mostTime {
				t.Errorf("took %s", took)
			}
		})
	}
	t.Run("a long bearer token", func(t *testing.T) {
		stranger := rest.AnonymousClientConfig(v.config)
		stranger.BearerToken = strings.Repeat("x.", 100_000)
		client, err := rest.HTTPClientFor(stranger)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Get(stranger.Host + maps)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusUnauthorized {
			t.Errorf("answered %d, want 401", response.StatusCode)
		}
	})
	v.stands()
}

// TestRapidResets asks and hangs up, over and over.
func TestRapidResets(t *testing.T) {
	v := newVictim(t)
	var g sync.WaitGroup
	for range 8 {
		g.Go(func() {
			for range 400 {
				ctx, cancel := context.WithCancel(t.Context())
				q, err := http.NewRequestWithContext(ctx, http.MethodGet, v.config.Host+"/api/v1/namespaces/default/configmaps?watch=1", http.NoBody)
				if err != nil {
					t.Error(err)
					cancel()
					return
				}
				go cancel()
				if response, err := v.client.Do(q); err == nil {
					response.Body.Close()
				} else if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	g.Wait()
	v.stands()
}

// TestIdleWatches holds 10,000 watches: others are served meanwhile, each learns of a write, and all end with the server.
func TestIdleWatches(t *testing.T) {
	const watches = 10_000
	s := &embed.Server{Node: embed.NodeNone, Controllers: []string{"none"}}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	stopped := false
	defer func() {
		if !stopped {
			_ = s.Stop()
		}
	}()
	const connections = 12 // each takes a thousand streams at most
	v := &victim{t: t, config: s.Config()}
	var clients []*http.Client
	for range connections {
		config, err := rest.TLSConfigFor(v.config)
		if err != nil {
			t.Fatal(err)
		}
		transport, err := rest.HTTPWrappersForConfig(v.config, &http.Transport{TLSClientConfig: config.Clone(), ForceAttemptHTTP2: true})
		if err != nil {
			t.Fatal(err)
		}
		v.client = &http.Client{Transport: transport}
		clients = append(clients, v.client)
		if code, body := v.say(request{method: "GET", path: "/version"}); code != http.StatusOK {
			t.Fatalf("%d %s", code, body)
		}
	}
	path := v.config.Host + "/api/v1/namespaces/default/configmaps?watch=1&fieldSelector=metadata.name%3Dthere"
	var open, told, ended sync.WaitGroup
	open.Add(watches)
	told.Add(watches)
	for i := range watches {
		ended.Go(func() {
			q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
			if err != nil {
				t.Error(err)
			}
			response, err := clients[i%connections].Do(q)
			open.Done()
			if err != nil {
				t.Errorf("watch: %v", err)
				told.Done()
				return
			}
			defer response.Body.Close()
			var first [1]byte
			if _, err := io.ReadFull(response.Body, first[:]); err != nil {
				t.Errorf("read the first event: %v", err)
			}
			told.Done()
			_, _ = io.Copy(io.Discard, response.Body) // ends, in whatever way, with the server
		})
	}
	open.Wait()
	begun := time.Now()
	if code, body := v.say(request{method: "POST", path: "/api/v1/namespaces/default/configmaps",
		body: strings.NewReader(`{"metadata":{"name":"there"}}`)}); code != http.StatusCreated {
		t.Fatalf("a write beside the watches is answered %d %s", code, body)
	}
	told.Wait()
	t.Logf("%d watches learned of a write within %s", watches, time.Since(begun).Round(time.Millisecond))
	begun, stopped = time.Now(), true
	if err := s.Stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	ended.Wait()
	if took := time.Since(begun); took > mostTime {
		t.Errorf("the watches ended after %s", took)
	}
}
