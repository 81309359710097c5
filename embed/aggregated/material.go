// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregated

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"sync"
	"time"
)

// material is the server's certificate. If it is from files, the server reads changed files at the next handshake.
type material struct {
	bundle []byte

	certFile, keyFile string
	mu                sync.Mutex
	current           *tls.Certificate
	cert, key         []byte
}

func (s *Server) material() (*material, error) {
	if s.CertFile == "" && s.KeyFile == "" {
		name := s.Service + "." + s.Namespace
		return selfSigned([]string{name + ".svc", name, s.Service, "localhost"}, s.Now())
	}
	m := &material{certFile: s.CertFile, keyFile: s.KeyFile}
	if _, err := m.certificate(nil); err != nil {
		return nil, err
	}
	m.bundle = m.cert
	return m, nil
}

// certificate returns the certificate for a handshake. If the files have become invalid, the previous certificate stays in
// use.
func (m *material) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.certFile == "" {
		return m.current, nil
	}
	cert, err := os.ReadFile(m.certFile)
	if err == nil {
		var key []byte
		if key, err = os.ReadFile(m.keyFile); err == nil {
			if m.current != nil && bytes.Equal(cert, m.cert) && bytes.Equal(key, m.key) {
				return m.current, nil
			}
			var pair tls.Certificate
			if pair, err = tls.X509KeyPair(cert, key); err == nil {
				m.current, m.cert, m.key = &pair, cert, key
				return m.current, nil
			}
		}
	}
	if m.current != nil {
		return m.current, nil
	}
	return nil, fmt.Errorf("read certificate: %w", err)
}

// selfSigned creates a CA and a certificate for ten years.
func selfSigned(names []string, now time.Time) (*material, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	t := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		NotBefore:   now.Add(-time.Hour), NotAfter: now.AddDate(10, 0, 0), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	return &material{
		bundle:  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		current: &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
	}, nil
}
