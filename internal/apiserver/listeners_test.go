// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

// TestSeveralListeners checks that a server serves all of its listeners. It ends with ctx, or when one of the listeners
// fails, which the error names.
func TestSeveralListeners(t *testing.T) {
	for _, fails := range []bool{false, true} {
		m, err := serving.LoadOrCreate("", []string{"127.0.0.1", "127.0.0.2"}, serving.Options{})
		if err != nil {
			t.Fatal(err)
		}
		engine := store.New(memory.Open(memory.Options{}))
		s, err := New(Options{Store: engine, Kinds: []*resource.Descriptor{configMaps()}, Material: m})
		if err != nil {
			t.Fatal(err)
		}
		var listeners []net.Listener
		for _, at := range []string{"127.0.0.1:0", "127.0.0.2:0"} {
			l, err := net.Listen("tcp", at)
			if err != nil {
				t.Fatal(err)
			}
			listeners = append(listeners, l)
		}
		ctx, end := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx, listeners...) }()
		for _, l := range listeners {
			client, err := rest.HTTPClientFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{
				CAData: m.CA.CertPEM, CertData: m.Admin.CertPEM, KeyData: m.Admin.KeyPEM,
			}})
			if err != nil {
				t.Fatal(err)
			}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+l.Addr().String()+"/readyz", nil)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				t.Errorf("%s: status %d", l.Addr(), answer.StatusCode)
			}
			client.CloseIdleConnections()
		}
		if fails {
			_ = listeners[1].Close()
			if err := <-served; err == nil || !strings.Contains(err.Error(), "serve API on "+listeners[1].Addr().String()) {
				t.Errorf("a listener has failed: %v", err)
			}
		}
		end()
		if !fails {
			if err := <-served; err != nil {
				t.Error(err)
			}
		}
		for _, l := range listeners {
			if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
				_ = c.Close()
				t.Errorf("%s is open still", l.Addr())
			}
		}
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	}
}
