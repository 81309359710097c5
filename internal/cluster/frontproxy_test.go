// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/internal/apiserver/serving"
)

// The front proxy's certificate is taken anew when its files say another, and stays when they say none.
func TestFrontProxyCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	m, err := serving.LoadOrCreate("", nil, serving.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := &frontProxyClient{certFile: filepath.Join(dir, "crt"), keyFile: filepath.Join(dir, "key")}
	write := func(cert, key []byte) {
		t.Helper()
		if err := os.WriteFile(f.certFile, cert, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f.keyFile, key, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	another, err := m.Client("another", nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		cert, key []byte
		changed   bool
		bad       bool
		who       string
	}{
		{name: "first", cert: m.FrontProxyClient.CertPEM, key: m.FrontProxyClient.KeyPEM, changed: true, who: "front-proxy-client"},
		{name: "the same", cert: m.FrontProxyClient.CertPEM, key: m.FrontProxyClient.KeyPEM, who: "front-proxy-client"},
		{name: "another's key", cert: m.FrontProxyClient.CertPEM, key: another.KeyPEM, bad: true, who: "front-proxy-client"},
		{name: "nonsense", cert: []byte("x"), key: []byte("y"), bad: true, who: "front-proxy-client"},
		{name: "another", cert: another.CertPEM, key: another.KeyPEM, changed: true, who: "another"},
	} {
		write(c.cert, c.key)
		changed, err := f.load()
		if changed != c.changed || (err != nil) != c.bad || f.held.Load().Leaf.Subject.CommonName != c.who {
			t.Errorf("%s: %v, %v, we are %s", c.name, changed, err, f.held.Load().Leaf.Subject.CommonName)
		}
	}
}
