// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package egresstest is a proxy for tests: it takes HTTP CONNECT and knows where each address really is.
//
// # Stability
//
// Other programs may use this package. A committed list of what it exports is compared in a test, so that nothing changes by accident. A
// release may change it, and its notes announce the change.
package egresstest

import (
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
)

// Proxy is a proxy that serves until its test ends.
type Proxy struct {
	// Route returns the real address; empty: there is none.
	Route func(address string) string

	mu    sync.Mutex
	asked []string
}

// Serve serves connections that l accepts.
func (p *Proxy) Serve(t testing.TB, l net.Listener) {
	s := &http.Server{Handler: p}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l) // ends with the listener
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-done
	})
}

// Asked are the addresses that were asked for, sorted, each once.
func (p *Proxy) Asked() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Compact(slices.Sorted(slices.Values(p.asked)))
}

// ServeHTTP implements [http.Handler].
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	address := r.RequestURI
	p.mu.Lock()
	p.asked = append(p.asked, address)
	p.mu.Unlock()
	to := p.Route(address)
	if r.Method != http.MethodConnect || to == "" {
		http.Error(w, "no way to "+address, http.StatusBadGateway)
		return
	}
	there, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", to)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer there.Close()
	here, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer here.Close()
	if _, err := io.WriteString(here, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	var ends sync.WaitGroup
	ends.Go(func() { pour(there, here) })
	pour(here, there)
	ends.Wait()
}

// pour copies until one side ends, and ends the other.
func pour(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	_ = to.Close()
	_ = from.Close()
}
