// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package serverset

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// listening returns the address of a listener that accepts connections until the test ends.
func listening(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// dead returns an address at which nothing listens.
func dead(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestDial: connections are spread over the servers that live, and the first one is tried when no other does.
func TestDial(t *testing.T) {
	one, two, gone, first := listening(t), listening(t), dead(t), listening(t)
	s := New(first)
	reach := func() string {
		t.Helper()
		c, err := s.Dial(t.Context(), "tcp", "ignored:1")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.RemoteAddr().String()
	}
	if got := reach(); got != first {
		t.Errorf("alone: %s", got)
	}
	s.Learn([]string{one, two, gone})
	count := map[string]int{}
	for range 60 {
		count[reach()]++
	}
	if count[one] < 10 || count[two] < 10 || count[one]+count[two] != 60 {
		t.Errorf("spread: %v", count)
	}
	s.Learn(nil)
	if got := reach(); got == first {
		t.Error("no addresses at all are believed")
	}
	s.Learn([]string{gone})
	if got := reach(); got != first {
		t.Errorf("all others are dead: %s", got)
	}
	s = New(gone)
	if _, err := s.Dial(t.Context(), "tcp", ""); err == nil || !strings.Contains(err.Error(), gone) {
		t.Errorf("all are dead: %v", err)
	}
}

// TestShunned: a server that could not be reached is tried last for a while.
func TestShunned(t *testing.T) {
	s := New("first:1")
	s.Learn([]string{"a:1", "b:1", "c:1"})
	s.mark("b:1", false)
	for range 20 {
		if order := s.order(time.Now()); order[2] != "b:1" || order[3] != "first:1" {
			t.Errorf("%v", order)
		}
	}
	seen := map[string]bool{}
	for range 100 {
		seen[s.order(time.Now().Add(shunned))[0]] = true
	}
	if !seen["b:1"] {
		t.Error("it is never tried again")
	}
}

// TestSilentServer: a server that accepts connections and does not answer on them costs little time.
func TestSilentServer(t *testing.T) {
	silent := listening(t)
	empty := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }
	server := httptest.NewUnstartedServer(http.HandlerFunc(empty))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	at := server.Listener.Addr().String()
	s := New(at) // its certificate has the address, and not the name that all servers have
	s.Learn([]string{silent})
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	tr.DialTLSContext = s.DialTLS(func() *tls.Config {
		c := tr.TLSClientConfig.Clone()
		c.NextProtos = []string{"h2"}
		return c
	}, nil)
	defer tr.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+silent, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusNoContent || response.ProtoMajor != 2 {
		t.Errorf("%s %s", response.Proto, response.Status)
	}
}

// TestKubeconfig: the servers go through a kubeconfig file, and a client uses those that live.
func TestKubeconfig(t *testing.T) {
	gone, live := dead(t), listening(t)
	file := clientcmdapi.NewConfig()
	file.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://" + gone}
	if err := (Servers{Servers: []string{live}, ServerName: "name"}).In(file.Clusters["c"]); err != nil {
		t.Fatal(err)
	}
	text, err := clientcmd.Write(*file)
	if err != nil {
		t.Fatal(err)
	}
	back, err := clientcmd.Load(text)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Of(back.Clusters["c"])
	if err != nil || !slices.Equal(got.Servers, []string{live}) || got.ServerName != "name" {
		t.Fatalf("%+v %v\n%s", got, err, text)
	}
	config := &rest.Config{Host: "https://" + gone}
	if err := got.Balance(t.Context(), config); err != nil || config.Host != "https://"+live || config.ServerName != "name" {
		t.Errorf("%s %s %v", config.Host, config.ServerName, err)
	}
	c, err := config.Dial(t.Context(), "tcp", "")
	if err != nil || c.RemoteAddr().String() != live {
		t.Fatalf("%v", err)
	}
	c.Close()
	for _, left := range []*rest.Config{{Host: "http://" + gone}, {Host: "https://" + gone, Proxy: http.ProxyFromEnvironment}} {
		if err := got.Balance(t.Context(), left); err != nil || left.Dial != nil {
			t.Errorf("%s is balanced: %v", left.Host, err)
		}
	}
	if none, err := Of(&clientcmdapi.Cluster{}); err != nil || len(none.Servers) > 0 {
		t.Errorf("%+v %v", none, err)
	}
	for _, wrong := range []string{`{"servers": 1}`, `{"servers": ["10.0.0.1"]}`} {
		raw, _ := json.Marshal(json.RawMessage(wrong))
		file.Clusters["c"] = &clientcmdapi.Cluster{}
		_ = Servers{}.In(file.Clusters["c"])
		set(file.Clusters["c"], raw)
		if _, err := Of(file.Clusters["c"]); err == nil {
			t.Errorf("%s is accepted", wrong)
		}
	}
}

func set(c *clientcmdapi.Cluster, raw []byte) {
	c.Extensions[Extension] = &runtime.Unknown{Raw: raw, ContentType: runtime.ContentTypeJSON}
}
