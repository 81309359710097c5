// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

// TestServerEndsGracefully checks a shutdown: readiness fails immediately, requests in flight are finished, new
// requests on the same connection are rejected, only then watches end, and the listener is closed.
func TestServerEndsGracefully(t *testing.T) {
	m, err := serving.LoadOrCreate("", []string{"127.0.0.1"}, serving.Options{})
	if err != nil {
		t.Fatal(err)
	}
	begun, finish := make(chan struct{}), make(chan struct{})
	s, err := New(Options{
		Store: store.New(memory.Open(memory.Options{})), Kinds: []*resource.Descriptor{configMaps()}, Material: m,
		Paths: map[string]http.Handler{"/slow": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			close(begun)
			<-finish
			_, _ = io.WriteString(w, "finished")
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	client, err := rest.HTTPClientFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{
		CAData: m.CA.CertPEM, CertData: m.Admin.CertPEM, KeyData: m.Admin.KeyPEM, NextProtos: []string{"http/1.1"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	url := "https://" + l.Addr().String()
	ask := func(path string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		a, err := client.Do(r)
		if err != nil {
			return 0, err.Error()
		}
		defer a.Body.Close()
		b, _ := io.ReadAll(a.Body)
		return a.StatusCode, string(b)
	}
	if code, _ := ask("/readyz"); code != http.StatusOK {
		t.Fatalf("readyz before: %d", code)
	}

	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/api/v1/configmaps?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	watch, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Body.Close()
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		_, _ = bufio.NewReader(watch.Body).ReadString(0)
	}()
	type answer struct {
		code int
		body string
	}
	slow := make(chan answer, 1)
	go func() {
		code, body := ask("/slow")
		slow <- answer{code, body}
	}()
	<-begun

	end()
	<-s.underway.closing
	get := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, path, nil)
		s.Handler().ServeHTTP(w, r)
		return w
	}
	if w := get("/readyz"); w.Code != http.StatusInternalServerError ||
		!strings.Contains(w.Body.String(), "[-]shutdown failed: reason withheld") {
		t.Errorf("readyz: %d %s", w.Code, w.Body.String())
	}
	if w := get("/livez"); w.Code != http.StatusOK {
		t.Errorf("livez: %d %s", w.Code, w.Body.String())
	}
	if w := get("/version"); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" ||
		!strings.Contains(w.Body.String(), "apiserver is shutting down") {
		t.Errorf("version: %d %v %s", w.Code, w.Header(), w.Body.String())
	}
	select {
	case <-watching:
		t.Error("the watch ended before the request was finished")
	case a := <-slow:
		t.Errorf("the request was cut off: %v", a)
	default:
	}

	close(finish)
	if a := <-slow; a.code != http.StatusOK || a.body != "finished" {
		t.Errorf("the request under way: %v", a)
	}
	<-watching
	select {
	case err := <-served:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the server did not end")
	}
	if code, text := ask("/version"); code != 0 {
		t.Errorf("after the end: %d %s", code, text)
	}
}
