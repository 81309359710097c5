// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package serving maintains a server's keys and certificates: the cluster's CA, the server's own certificate, the
// administrator's and the kubelet client's, the key that signs service account tokens, and the front-proxy CA of aggregated
// APIs.
//
// [LoadOrCreate] reads them from a directory, creates missing ones, and renews certificates that are about to expire or no longer
// name the server's hosts. It never replaces an authority. It writes every file completely, under a new name, and renames it; only its
// owner may read it.
package serving

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/mortise-dev/mortise/internal/apiserver/authenticate"
	"github.com/mortise-dev/mortise/internal/durable"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	leafLife      = 365 * 24 * time.Hour
)

// Pair is a certificate with its key.
type Pair struct {
	Certificate *x509.Certificate
	Key         *ecdsa.PrivateKey
	CertPEM     []byte
	KeyPEM      []byte
}

// TLS returns the pair as a certificate of crypto/tls.
func (p *Pair) TLS() tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{p.Certificate.Raw}, PrivateKey: p.Key, Leaf: p.Certificate}
}

// Pool returns a pool that contains only the pair's certificate.
func (p *Pair) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(p.Certificate)
	return pool
}

// Material is all keys and certificates of a server.
type Material struct {
	CA               *Pair // signs everything below except the front proxy's
	Server           *Pair
	Certificates     *Certificates // nil: clients get Server
	Admin            *Pair         // CN kubernetes-admin, O system:masters
	KubeletClient    *Pair         // CN kube-apiserver-kubelet-client, no group; the API itself rejects it
	FrontProxyCA     *Pair
	FrontProxyClient *Pair // CN front-proxy-client
	ServiceAccount   *ecdsa.PrivateKey
}

// Options of [LoadOrCreate]. The zero value is useful.
type Options struct {
	Now func() time.Time // nil: time.Now
}

// LoadOrCreate reads the material in dir, creates missing parts, and renews the server's certificate when it lacks some
// of the hosts. Without a dir it creates all of it and stores nothing.
func LoadOrCreate(dir string, hosts []string, o Options) (*Material, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if dir != "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make certificate directory: %w", err)
		}
	}
	k := pairDirectory{dir: dir, now: o.Now()}
	m := &Material{}
	var err error
	if m.CA, err = k.authority("ca", "kubernetes"); err != nil {
		return nil, err
	}
	if m.FrontProxyCA, err = k.authority("front-proxy-ca", "front-proxy-ca"); err != nil {
		return nil, err
	}
	if m.Server, err = k.leaf("apiserver", m.CA, subject{name: "kube-apiserver", hosts: hosts, server: true}); err != nil {
		return nil, err
	}
	if m.Admin, err = k.leaf("admin", m.CA, subject{name: "kubernetes-admin", groups: []string{"system:masters"}, uid: true}); err != nil {
		return nil, err
	}
	if m.KubeletClient, err = k.leaf("apiserver-kubelet-client", m.CA, subject{name: authenticate.KubeletClientName}); err != nil {
		return nil, err
	}
	if m.FrontProxyClient, err = k.leaf("front-proxy-client", m.FrontProxyCA, subject{name: "front-proxy-client"}); err != nil {
		return nil, err
	}
	if m.ServiceAccount, err = k.key("sa"); err != nil {
		return nil, err
	}
	return m, nil
}

// Timely returns an error that names the authorities that are not valid at a time: clients refuse what these have signed.
func (m *Material) Timely(now time.Time) error {
	var all []error
	for _, ca := range []*Pair{m.CA, m.FrontProxyCA} {
		if c := ca.Certificate; now.Before(c.NotBefore) || now.After(c.NotAfter) {
			all = append(all, fmt.Errorf("authority %s: valid from %s to %s, and the clock says %s", c.Subject.CommonName,
				c.NotBefore.Format(time.RFC3339), c.NotAfter.Format(time.RFC3339), now.UTC().Format(time.RFC3339)))
		}
	}
	return errors.Join(all...)
}

// Client signs a client certificate and does not store it.
func (m *Material) Client(name string, groups []string, now time.Time) (*Pair, error) {
	return sign(m.CA, subject{name: name, groups: groups}, now)
}

// Node signs the certificate that a node's agent uses both as a server and as a client.
func (m *Material) Node(node string, hosts []string, now time.Time) (*Pair, error) {
	return sign(m.CA, subject{name: "system:node:" + node, groups: []string{"system:nodes"}, hosts: hosts, server: true, client: true}, now)
}

type subject struct {
	name           string
	groups, hosts  []string
	server, client bool
	uid            bool // draw one
}

type pairDirectory struct {
	dir string
	now time.Time
}

// authority reads an authority, and creates it only if there is none: nodes, clients and other servers trust it, and the clock that says
// that it is not valid may be wrong, as that of a machine that has just started often is.
func (k *pairDirectory) authority(name, cn string) (*Pair, error) {
	p, err := k.read(name)
	if err != nil || p != nil {
		return p, err
	}
	if k.dir != "" {
		path := filepath.Join(k.dir, name)
		if _, err := os.Stat(path + ".crt"); !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(fmt.Errorf("authority %s.crt: no key of it in %s.key; put it back, or move the certificate away to make a new "+
				"authority, which nodes and clients do not trust", path, path), err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	begin := k.now.Add(-5 * time.Minute)
	t, err := template(cn, begin, begin.Add(authorityLife))
	if err != nil {
		return nil, err
	}
	t.IsCA, t.BasicConstraintsValid = true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment
	t.DNSNames = []string{cn}
	if p, err = seal(t, t, key, key); err != nil {
		return nil, err
	}
	return p, k.write(name, p)
}

func (k *pairDirectory) leaf(name string, ca *Pair, s subject) (*Pair, error) {
	p, err := k.read(name)
	if err != nil {
		return nil, err
	}
	if p != nil && k.fresh(p.Certificate) && p.Certificate.CheckSignatureFrom(ca.Certificate) == nil &&
		slices.Equal(p.Certificate.Subject.Organization, s.groups) && names(p.Certificate, s.hosts) {
		return p, nil
	}
	if p, err = sign(ca, s, k.now); err != nil {
		return nil, err
	}
	return p, k.write(name, p)
}

func (k *pairDirectory) key(name string) (*ecdsa.PrivateKey, error) {
	path := filepath.Join(k.dir, name+".key")
	if k.dir != "" {
		b, err := os.ReadFile(path)
		if err == nil {
			return parseKey(path, b)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read key: %w", err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	pemBytes, err := keyPEM(key)
	if err != nil || k.dir == "" {
		return key, err
	}
	return key, durable.Write(path, 0o600, pemBytes)
}

// fresh reports whether more than a third of a certificate's lifetime is left.
func (k *pairDirectory) fresh(c *x509.Certificate) bool {
	return k.now.Before(c.NotAfter.Add(-leafLife / 3))
}

func names(c *x509.Certificate, hosts []string) bool {
	for _, h := range hosts {
		if c.VerifyHostname(h) != nil {
			return false
		}
	}
	return true
}

// sign makes a certificate that is valid from when its authority is, so that a clock that is set back, or starts in the past, does not make
// it invalid.
func sign(ca *Pair, s subject, now time.Time) (*Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	begin := ca.Certificate.NotBefore
	if now.Before(begin) {
		now = begin
	}
	t, err := template(s.name, begin, now.Add(leafLife))
	if err != nil {
		return nil, err
	}
	t.Subject.Organization = s.groups
	if s.uid {
		t.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: authenticate.UIDAttribute(), Value: string(uuid.NewUUID())}}
	}
	t.KeyUsage = x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment
	if s.server {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if !s.server || s.client {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	for _, h := range s.hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else if h != "" && !slices.Contains(t.DNSNames, h) {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	return seal(t, ca.Certificate, key, ca.Key)
}

func template(cn string, begin, end time.Time) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("draw serial number: %w", err)
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: cn}, NotBefore: begin.UTC(), NotAfter: end.UTC(),
	}, nil
}

func seal(t, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) (*Pair, error) {
	der, err := x509.CreateCertificate(rand.Reader, t, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse certificate: %w", err)
	}
	kp, err := keyPEM(key)
	if err != nil {
		return nil, err
	}
	return &Pair{Certificate: c, Key: key, KeyPEM: kp, CertPEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, nil
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

func parseKey(path string, b []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, fmt.Errorf("read key %s: not PEM", path)
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read key %s: %w", path, err)
	}
	return key, nil
}

func (k *pairDirectory) read(name string) (*Pair, error) {
	if k.dir == "" {
		return nil, nil
	}
	certPath, keyPath := filepath.Join(k.dir, name+".crt"), filepath.Join(k.dir, name+".key")
	c, err := os.ReadFile(certPath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	kb, err := os.ReadFile(keyPath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	block, _ := pem.Decode(c)
	if block == nil {
		return nil, fmt.Errorf("read certificate %s: not PEM", certPath)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read certificate %s: %w", certPath, err)
	}
	key, err := parseKey(keyPath, kb)
	if err != nil {
		return nil, err
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, nil // a renewal was interrupted between its two files; the pair is created again
	}
	return &Pair{Certificate: cert, Key: key, CertPEM: c, KeyPEM: kb}, nil
}

func (k *pairDirectory) write(name string, p *Pair) error {
	if k.dir == "" {
		return nil
	}
	if err := durable.Write(filepath.Join(k.dir, name+".key"), 0o600, p.KeyPEM); err != nil {
		return err
	}
	return durable.Write(filepath.Join(k.dir, name+".crt"), 0o600, p.CertPEM)
}
