// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package grpcconn

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestTLS: etcd serves gRPC by net/http where it has TLS. Calls of all sizes work, and the server sees the client's certificate, which is
// read for each connection.
func TestTLS(t *testing.T) {
	var certificates sync.Map
	server := grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		return echo("", s)
	}))
	h := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		certificates.Store(string(r.TLS.PeerCertificates[0].Raw), true)
		server.ServeHTTP(w, r)
	}))
	h.EnableHTTP2 = true
	h.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	h.StartTLS()
	t.Cleanup(h.Close)
	own, read := h.TLS.Certificates[0], 0
	config := &tls.Config{RootCAs: roots(h), ServerName: "example.com"}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		read++
		return &own, nil
	}
	options := Options{Settled: func() {}, Silence: time.Hour, Patience: time.Hour}
	for range 2 {
		c, err := Dial(t.Context(), h.Listener.Addr().String(), config, options)
		if err != nil {
			t.Fatal(err)
		}
		var callers sync.WaitGroup
		for i := range 8 {
			callers.Go(func() {
				for _, size := range []int{0, 1, 1 << 16, 1 << 20} {
					request := bytes.Repeat([]byte{byte(i)}, size)
					if got, err := ask(t.Context(), c, "/a/b", request); err != nil || !bytes.Equal(got, request) {
						t.Errorf("%d bytes: %d, %v", size, len(got), err)
					}
				}
			})
		}
		callers.Wait()
		c.Close()
	}
	if _, ok := certificates.Load(string(own.Certificate[0])); !ok || read != 2 {
		t.Errorf("the client's certificate was read %d times, and has arrived: %v", read, ok)
	}
}

func roots(h *httptest.Server) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(h.Certificate())
	return pool
}

// TestNoTLS: Dial refuses a server of another name, of an unknown authority, without HTTP/2, and without TLS.
func TestNoTLS(t *testing.T) {
	options := Options{Settled: func() {}, Silence: time.Hour, Patience: time.Hour}
	h := httptest.NewUnstartedServer(http.NotFoundHandler())
	h.EnableHTTP2 = true
	h.StartTLS()
	t.Cleanup(h.Close)
	old := listen(t, func(c net.Conn) {
		_ = tls.Server(c, &tls.Config{Certificates: h.TLS.Certificates}).Handshake()
	})
	_, plain := serve(t, echo)
	for name, c := range map[string]struct {
		address string
		config  *tls.Config
		text    string
	}{
		"another name":      {h.Listener.Addr().String(), &tls.Config{RootCAs: roots(h), ServerName: "etcd.test"}, "etcd.test"},
		"unknown authority": {h.Listener.Addr().String(), &tls.Config{}, "unknown authority"},
		"without HTTP/2":    {old, &tls.Config{RootCAs: roots(h)}, "no HTTP/2"},
		"without TLS":       {plain, &tls.Config{}, "TLS"},
		"nobody":            {nobody(t), &tls.Config{}, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Dial(t.Context(), c.address, c.config, options)
			if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v", err)
			}
		})
	}
}

// nobody returns an address where no server listens.
func nobody(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
