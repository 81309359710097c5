// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devhook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/mortise-dev/mortise/extension/trust"
	"github.com/mortise-dev/mortise/internal/durable"
)

func (t *Target) encoded() string { return base64.StdEncoding.EncodeToString(t.Bundle) }

// life of the certificates that are made.
const life = 30 * 24 * time.Hour

// Shown returns the certificates that the server at u presents, in PEM; an error if clients that trust them still could not
// call it.
func Shown(ctx context.Context, u *url.URL, now time.Time) ([]byte, error) {
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true,
		MinVersion: tls.VersionTLS12}} //nolint:gosec // it is what is asked for: whatever this address shows is trusted
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443")))
	if err != nil {
		return nil, fmt.Errorf("get the certificate of %s: %w; start the process first, or write a certificate for it with --cert-dir", u.Host,
			err)
	}
	defer conn.Close()
	shown := conn.(*tls.Conn).ConnectionState().PeerCertificates
	if len(shown) == 0 {
		return nil, fmt.Errorf("get the certificate of %s: the server presents none", u.Host)
	}
	roots := x509.NewCertPool()
	var bundle bytes.Buffer
	for _, c := range shown {
		roots.AddCert(c)
		bundle.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
	}
	if _, err := shown[0].Verify(x509.VerifyOptions{DNSName: u.Hostname(), Roots: roots, CurrentTime: now}); err != nil {
		return nil, fmt.Errorf("the certificate of %s cannot be trusted: %w; write one for it with --cert-dir, or forward calls with --calls",
			u.Host, err)
	}
	return bundle.Bytes(), nil
}

// Written is the authority of a certificate for u's host whose files lie in dir: tls.crt and tls.key for the process to serve with, ca.crt.
// What is there is used again while it is good.
func Written(dir string, u *url.URL, now time.Time) ([]byte, error) {
	hosts := []string{u.Hostname()}
	if ip := net.ParseIP(u.Hostname()); ip != nil && ip.IsLoopback() || u.Hostname() == "localhost" {
		hosts = []string{"localhost", "127.0.0.1", "::1"}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of certificates: %w", err)
	}
	files := map[string][]byte{}
	for _, name := range []string{"tls.crt", "tls.key", "ca.crt"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("read certificate: %w", err)
		}
		files[name] = b
	}
	b := trust.Read(files["tls.crt"], files["tls.key"], nil, nil, files["ca.crt"])
	if b.Current == nil && len(files["tls.crt"]) > 0 {
		return nil, fmt.Errorf("%s has a certificate that its ca.crt did not sign, or with another key: remove it, or choose another directory",
			dir)
	}
	issue := func() (*trust.Pair, error) { return trust.Issue("mortise webhook dev", hosts, now, life) }
	b, _, err := b.Turn(hosts, now, trust.Times{}, issue)
	if err != nil {
		return nil, err
	}
	p := b.Current
	for name, data := range map[string][]byte{"tls.crt": p.Cert, "tls.key": p.Key, "ca.crt": p.Authority} {
		if bytes.Equal(files[name], data) {
			continue
		}
		if err := durable.Write(filepath.Join(dir, name), 0o600, data); err != nil {
			return nil, fmt.Errorf("write certificate: %w", err)
		}
	}
	return p.Authority, nil
}
