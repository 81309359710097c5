// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/etcd"
)

// authority signs certificates into a folder.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{dir: t.TempDir()}
	a.cert, a.key = a.sign(t, "ca", "")
	return a
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// sign writes a certificate and its key; without an authority's key it signs itself. Each function changes what is signed.
func (a *authority) sign(t *testing.T, name, host string, change ...func(*x509.Certificate)) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Minute),
		NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if host != "" {
		template.IPAddresses = []net.IP{net.ParseIP(host)}
	}
	for _, f := range change {
		f(template)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		template.IsCA, template.KeyUsage, parent, signer = true, x509.KeyUsageCertSign, template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	secret, err := x509.MarshalECPrivateKey(key)
	must(t, err)
	must(t, os.WriteFile(a.file(name+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must(t, os.WriteFile(a.file(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}), 0o600))
	return cert, key
}

// TestCertificates: an engine with the right certificates is served; with wrong ones, or none, Open says so, and does not wait.
func TestCertificates(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	a.sign(t, "client", "")
	other.sign(t, "client", "")
	c := unstarted(t, 1, "--client-cert-auth", "--trusted-ca-file", a.file("ca.crt"),
		"--cert-file", a.file("member.crt"), "--key-file", a.file("member.key"))
	defer c.remove()
	c.urls[0] = strings.Replace(c.urls[0], "http://", "https://", 1)
	u, err := url.Parse(c.urls[0])
	must(t, err)
	a.sign(t, "member", u.Hostname())
	c.start(t, 0)
	open := func(ca, cert, key string) error {
		config, err := etcd.LoadTLS(ca, cert, key)
		must(t, err)
		e, err := etcd.Open(t.Context(), etcd.Options{Servers: c.urls, TLS: config})
		if err == nil {
			_, err = store.New(e).Create(t.Context(), "/registry/a", []byte("x"), 0)
			e.Close()
		}
		return err
	}
	if err := open(a.file("ca.crt"), a.file("client.crt"), a.file("client.key")); err != nil {
		t.Errorf("right certificates: %v", err)
	}
	for name, files := range map[string][3]string{
		"the member's authority is unknown": {other.file("ca.crt"), a.file("client.crt"), a.file("client.key")},
		"the client's authority is unknown": {a.file("ca.crt"), other.file("client.crt"), other.file("client.key")},
		"the client shows no certificate":   {a.file("ca.crt"), "", ""},
	} {
		began := time.Now()
		err := open(files[0], files[1], files[2])
		if err == nil || !strings.Contains(err.Error(), "tls: ") || time.Since(began) > 10*time.Second {
			t.Errorf("%s: %v, after %v", name, err, time.Since(began))
		}
	}
}

// TestUnreachable: without a member that answers, Open gives up after its time and names the reason.
func TestUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := l.Addr().String()
	l.Close()
	_, err = etcd.Open(t.Context(), etcd.Options{Servers: []string{"http://" + address}, OpenTime: 500 * time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), address) {
		t.Errorf("nothing listens: %v", err)
	}
}
