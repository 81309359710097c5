// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package serving

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestFilePair: a certificate is taken anew when its files have another, and stays when they have none; each error comes once.
func TestFilePair(t *testing.T) {
	dir := t.TempDir()
	m, err := LoadOrCreate("", nil, Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := &FilePair{CertFile: filepath.Join(dir, "crt"), KeyFile: filepath.Join(dir, "key")}
	write := func(cert, key []byte) {
		t.Helper()
		if err := os.WriteFile(f.CertFile, cert, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f.KeyFile, key, 0o600); err != nil {
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
		{name: "another's key still", cert: m.FrontProxyClient.CertPEM, key: another.KeyPEM, who: "front-proxy-client"},
		{name: "nonsense", cert: []byte("x"), key: []byte("y"), bad: true, who: "front-proxy-client"},
		{name: "the first again", cert: m.FrontProxyClient.CertPEM, key: m.FrontProxyClient.KeyPEM, who: "front-proxy-client"},
		{name: "nonsense again", cert: []byte("x"), key: []byte("y"), bad: true, who: "front-proxy-client"},
		{name: "another", cert: another.CertPEM, key: another.KeyPEM, changed: true, who: "another"},
	} {
		write(c.cert, c.key)
		changed, err := f.Reload()
		if changed != c.changed || (err != nil) != c.bad || f.Certificate().Leaf.Subject.CommonName != c.who {
			t.Errorf("%s: %v, %v, we are %s", c.name, changed, err, f.Certificate().Leaf.Subject.CommonName)
		}
	}
	if err := os.Remove(f.KeyFile); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Reload(); err == nil || f.Certificate() == nil {
		t.Errorf("a file that is gone: error %v", err)
	}
	if _, err := f.Reload(); err != nil {
		t.Errorf("a file that is gone still: error %v", err)
	}
}
