// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/apis/apiserver"
)

// TestAsk: an address that would end the request line is not sent, and a proxy that is gone is an error.
func TestAsk(t *testing.T) {
	for address, want := range map[string]string{"web.invalid:80\r\nX: y": "want HOST:PORT", "web invalid:80": "want HOST:PORT",
		"web.invalid:80": "write CONNECT to web.invalid:80 via proxy there"} {
		near, far := net.Pipe()
		_ = far.Close()
		if err := (&proxy{address: "there"}).ask(near, address); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", address, err, want)
		}
		_ = near.Close()
	}
}

// TestClientTLS: without a bundle the machine's authorities are trusted, and a bundle that is not there is an error.
func TestClientTLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	both := filepath.Join(t.TempDir(), "pair.pem")
	text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})...)
	if err := os.WriteFile(both, text, 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := clientTLS(&apiserver.TLSConfig{ClientCert: both, ClientKey: both}, "proxy.example")
	if err != nil || c.RootCAs != nil || c.ServerName != "proxy.example" || len(c.Certificates) != 1 {
		t.Errorf("without a bundle: %v, %v", c, err)
	}
	c, err = clientTLS(&apiserver.TLSConfig{ClientCert: both, ClientKey: both, CABundle: both, TLSServerName: "other.example"},
		"proxy.example")
	if err != nil || c.RootCAs == nil || c.ServerName != "other.example" {
		t.Errorf("with a bundle: %v, %v", c, err)
	}
	if c, err := clientTLS(&apiserver.TLSConfig{ClientCert: both, ClientKey: both, CABundle: "/nosuch"}, ""); c != nil || err == nil ||
		!strings.Contains(err.Error(), "failed to read cert file /nosuch") {
		t.Errorf("a bundle that is not there: %v, %v", c, err)
	}
}
