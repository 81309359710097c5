// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package masterleases

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

// TestGuard: the lease of a server that dies is removed at once, that of one that was never reached is left alone, and one that lives
// writes its lease again.
func TestGuard(t *testing.T) {
	s := store.New(memory.Open(memory.Options{}))
	defer s.Close()
	greeted := make(chan struct{}, 10)
	other := httptest.NewUnstartedServer(http.NotFoundHandler())
	other.EnableHTTP2 = true
	other.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateActive { // the handshake is over
			greeted <- struct{}{}
		}
	}
	other.StartTLS()
	roots := x509.NewCertPool()
	roots.AddCert(other.Certificate())
	at := netip.MustParseAddrPort(other.Listener.Addr().String())
	own, unreachable := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddrPort("127.255.255.254:1")
	put := func(at netip.AddrPort) {
		t.Helper()
		lease := store.Op{Key: prefix + at.Addr().String(), Value: value(at, 1), Expect: store.Any, TTL: time.Hour}
		if _, err := s.Put(t.Context(), lease); err != nil {
			t.Fatal(err)
		}
	}
	put(at)
	put(unreachable)
	ctx, cancel := context.WithCancel(t.Context())
	l := &Leases{Store: s, Port: at.Port(), Log: slog.New(slog.DiscardHandler)}
	changes := make(chan []netip.Addr, 10)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { l.Hold(ctx, own, func(all []netip.Addr) { changes <- all }) })
	next := func(want ...netip.Addr) {
		t.Helper()
		for {
			select {
			case got := <-changes:
				if slices.Equal(got, want) {
					return
				}
			case <-time.After(30 * time.Second):
				t.Fatalf("the servers are never %v", want)
			}
		}
	}
	next(at.Addr(), unreachable.Addr(), own)
	running.Go(func() { l.Guard(ctx, own, &tls.Config{RootCAs: roots, ServerName: "example.com"}) })
	<-greeted
	// A connection that ends alone is no death: another one is made.
	other.CloseClientConnections()
	<-greeted
	if page, err := s.List(ctx, prefix); err != nil || len(page.Records) != 3 {
		t.Errorf("%v %v", page.Records, err)
	}
	began := time.Now()
	other.Close()
	next(unreachable.Addr(), own)
	t.Logf("removed after %s", time.Since(began))

	// Others believe that this one is dead.
	if _, err := s.Delete(ctx, prefix+own.String(), store.Any); err != nil {
		t.Fatal(err)
	}
	next(unreachable.Addr())
	next(unreachable.Addr(), own)
}
