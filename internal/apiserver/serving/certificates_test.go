// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package serving

import (
	"crypto/tls"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// end is a connection between two addresses.
type end struct {
	net.Conn
	local, remote string
}

func (e end) LocalAddr() net.Addr  { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(e.local)) }
func (e end) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(e.remote)) }

// TestCertificates: who gets which certificate, by the server name that it sends, or by both ends of its connection.
func TestCertificates(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	own, err := LoadOrCreate("", []string{"localhost", "127.0.0.1", "10.0.0.5", "10.244.0.1", "kubernetes.default.svc", LoopbackName},
		Options{})
	if err != nil {
		t.Fatal(err)
	}
	others, err := LoadOrCreate("", nil, Options{})
	if err != nil {
		t.Fatal(err)
	}
	files := func(name string, hosts ...string) *FilePair {
		t.Helper()
		p, err := sign(others.CA, subject{name: name, hosts: hosts, server: true}, now)
		if err != nil {
			t.Fatal(err)
		}
		certFile, keyFile := filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
		for path, pem := range map[string][]byte{certFile: p.CertPEM, keyFile: p.KeyPEM} {
			if err := os.WriteFile(path, pem, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		pair, err := ReadFilePair(certFile, keyFile)
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	standard := files("standard", "api.example", "10.0.0.5", "kubernetes.default.svc")
	named := []NamedPair{
		{FilePair: files("explicit", "x.example"), Names: []string{"Explicit.example", "*.wild.example", "10.0.0.6", "fd00::6"}},
		{FilePair: files("implicit", "implicit.example", "explicit.example", "kubernetes.default", "10.0.0.7")},
		{FilePair: files("later", "implicit.example", "later.example")},
	}
	pods := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	inCluster := Files{Default: standard, Named: named, Pods: pods}
	trusted := Files{Default: standard, Named: named, Pods: pods, Trusted: true}
	for _, c := range []struct {
		files         Files
		name          string
		local, remote string
		want          string
	}{
		{files: inCluster, name: "api.example", want: "standard"},
		{files: inCluster, name: "API.example.", want: "standard"},
		{files: inCluster, name: "other.example", want: "standard"},
		{files: inCluster, name: "localhost", want: "kube-apiserver"},
		{files: inCluster, name: "kubernetes.default.svc", want: "kube-apiserver"},
		{files: inCluster, name: "kubernetes.default", want: "kube-apiserver"},
		{files: inCluster, name: LoopbackName, want: "kube-apiserver"},
		{files: inCluster, name: "explicit.example", want: "explicit"},
		{files: inCluster, name: "a.wild.example", want: "explicit"},
		{files: inCluster, name: "a.b.wild.example", want: "standard"},
		{files: inCluster, name: "x.example", want: "standard"},
		{files: inCluster, name: "implicit", want: "implicit"},
		{files: inCluster, name: "implicit.example", want: "implicit"},
		{files: inCluster, name: "later.example", want: "later"},
		{files: inCluster, local: "127.0.0.1:6443", remote: "127.0.0.1:4000", want: "kube-apiserver"},
		{files: inCluster, local: "10.0.0.5:6443", remote: "10.0.0.9:4000", want: "standard"},
		{files: inCluster, local: "10.0.0.5:6443", remote: "10.244.3.4:4000", want: "kube-apiserver"},
		{files: inCluster, local: "10.244.0.1:6443", remote: "10.0.0.5:4000", want: "kube-apiserver"},
		{files: inCluster, local: "10.0.0.6:6443", remote: "10.244.3.4:4000", want: "explicit"},
		{files: inCluster, local: "[fd00::6]:6443", remote: "[fd00::9]:4000", want: "explicit"},
		{files: inCluster, local: "10.0.0.7:6443", remote: "10.0.0.9:4000", want: "standard"},
		{files: trusted, name: "kubernetes.default.svc", want: "standard"},
		{files: trusted, name: "kubernetes.default", want: "implicit"},
		{files: trusted, name: LoopbackName, want: "kube-apiserver"},
		{files: trusted, local: "10.244.0.1:6443", remote: "10.244.3.4:4000", want: "standard"},
		{files: trusted, local: "127.0.0.1:6443", remote: "127.0.0.1:4000", want: "standard"},
		{files: Files{Named: named}, name: "api.example", want: "kube-apiserver"},
		{files: Files{Named: named}, name: "explicit.example", want: "explicit"},
		{files: Files{Named: []NamedPair{{FilePair: standard, Names: []string{"*"}}}}, name: "any", want: "standard"},
	} {
		hello := &tls.ClientHelloInfo{ServerName: c.name}
		if c.local != "" {
			hello.Conn = end{local: c.local, remote: c.remote}
		}
		got, err := NewCertificates(own.Server, c.files).Get(hello)
		if err != nil || got.Leaf.Subject.CommonName != c.want {
			t.Errorf("name %q, from %s to %s, pods trust another CA: %v: got %s (error %v), want %s", c.name, c.remote, c.local, c.files.Trusted,
				got.Leaf.Subject.CommonName, err, c.want)
		}
	}

	all := NewCertificates(own.Server, inCluster)
	if got := len(all.Paths()); got != 8 {
		t.Errorf("%d files are watched, want 8", got)
	}
	files("explicit2", "new.example")
	for _, end := range []string{"crt", "key"} {
		if err := os.Rename(filepath.Join(dir, "explicit2."+end), filepath.Join(dir, "explicit."+end)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(standard.KeyFile, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if changed, err := all.Reload(); len(changed) != 1 || err == nil {
		t.Errorf("reloaded %d pairs, error %v, want one and the error of the other", len(changed), err)
	}
	for name, want := range map[string]string{"explicit.example": "explicit2", "api.example": "standard"} {
		if got, _ := all.Get(&tls.ClientHelloInfo{ServerName: name}); got.Leaf.Subject.CommonName != want {
			t.Errorf("%s after the reload: got %s, want %s", name, got.Leaf.Subject.CommonName, want)
		}
	}
}
