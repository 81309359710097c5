// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package trust makes the serving certificates of extensions, and determines when to rotate them.
//
// [Issue] makes a certificate under a CA of its own, whose key it discards: a reader of the certificate's secret can
// impersonate that one server only. [Bundle.Turn] is the pure core of a rotation without interruption: clients trust the CA
// of the next certificate before the server presents it, and the old CA for as long as the server may still present its
// certificate.
//
// # Stability
//
// Other programs may use this package. A committed list of what it exports is compared in a test, so that nothing changes by accident. A
// release may change it, and its notes announce the change.
package trust

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"
)

// Pair is a serving certificate and its key, with the authority that signed it, in PEM.
type Pair struct {
	Cert, Key, Authority []byte
}

// skew is how long before now a certificate begins to count, for servers whose clocks are behind.
const skew = 5 * time.Minute

// Issue makes a pair for the hosts, which are names or addresses. The authority has the name as its common name, and ends with
// the certificate.
func Issue(name string, hosts []string, now time.Time, life time.Duration) (*Pair, error) {
	if len(hosts) == 0 {
		return nil, errors.New("issue certificate: no hosts")
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	ca, err := template(name, now, life)
	if err != nil {
		return nil, err
	}
	ca.IsCA, ca.BasicConstraintsValid, ca.MaxPathLenZero = true, true, true
	ca.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		return nil, fmt.Errorf("make authority: %w", err)
	}
	if ca, err = x509.ParseCertificate(caDER); err != nil {
		return nil, fmt.Errorf("read authority: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	leaf, err := template(hosts[0], now, life)
	if err != nil {
		return nil, err
	}
	leaf.KeyUsage, leaf.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	if err != nil {
		return nil, fmt.Errorf("make certificate: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return &Pair{
		Cert:      pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:       pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
		Authority: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}),
	}, nil
}

// longest is how long a common name may be.
const longest = 64

func template(name string, now time.Time, life time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("draw serial number: %w", err)
	}
	if len(name) > longest {
		name = name[:longest]
	}
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-skew),
		NotAfter: now.Add(life)}, nil
}

// leaf reads the pair's certificate; an error when pair and key do not belong together, or the certificate is not of the authority.
func (p *Pair) leaf() (*x509.Certificate, error) {
	if p == nil {
		return nil, errors.New("there is none")
	}
	c, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.Authority)
	between := c.Leaf.NotBefore.Add(c.Leaf.NotAfter.Sub(c.Leaf.NotBefore) / 2)
	if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: between,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
		return nil, fmt.Errorf("check certificate: %w", err)
	}
	return c.Leaf, nil
}

// good reports whether the pair is valid for the hosts at a time.
func (p *Pair) good(hosts []string, now time.Time) bool {
	c, err := p.leaf()
	if err != nil || !now.Before(c.NotAfter) || now.Before(c.NotBefore) {
		return false
	}
	for _, h := range hosts {
		if c.VerifyHostname(h) != nil {
			return false
		}
	}
	return true
}

// begun is when the pair was made.
func (p *Pair) begun() time.Time {
	c, err := p.leaf()
	if err != nil {
		return time.Time{}
	}
	return c.NotBefore.Add(skew)
}

// authorities are the certificates in a bundle, each once, in PEM.
func authorities(bundle []byte) [][]byte {
	var out [][]byte
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		one := pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})
		if block.Type == "CERTIFICATE" && !slices.ContainsFunc(out, func(b []byte) bool { return bytes.Equal(b, one) }) {
			out = append(out, one)
		}
	}
	return out
}
