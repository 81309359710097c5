// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package join

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/certificate"
	"k8s.io/client-go/util/connrotation"

	"github.com/mortise-dev/mortise/internal/serverset"
)

// Identity is a node's identity in its cluster. Its certificate may be replaced at any time, even while it is used.
type Identity struct {
	Name        string
	Server      string
	Authorities []byte // of the server's certificate, and of the node's clients; PEM

	dir     string
	log     *slog.Logger
	current atomic.Pointer[tls.Certificate]
	dialer  atomic.Pointer[connrotation.Dialer]
	set     atomic.Pointer[serverset.Set]
	more    []string // HOST:PORT of all servers of the cluster that the node knows; only Follow changes it

	selfSigning sync.Mutex
	selfKey     *ecdsa.PrivateKey // of all certificates of SelfSigned
}

// Serving returns the identity of a node that has other credentials for the API server: it makes serving certificates, and keeps those of
// the cluster in a directory pki below dir.
func Serving(dir, name string, log *slog.Logger) *Identity {
	return &Identity{Name: name, dir: dir, log: log}
}

func (i *Identity) use(c *tls.Certificate) { i.current.Store(c) }

// renew makes c the current certificate. It closes connections with the previous one: the server would continue to identify them by a
// certificate that expires.
func (i *Identity) renew(c *tls.Certificate) {
	i.use(c)
	i.log.Info("Rotated the node's client certificate", "until", c.Leaf.NotAfter)
	i.Reconnect()
}

// Reconnect closes all connections to the server, because their source address no longer belongs to the node, which no packet would reveal.
func (i *Identity) Reconnect() {
	if d := i.dialer.Load(); d != nil {
		d.CloseAll()
	}
}

// Pool returns the cluster's CAs.
func (i *Identity) Pool() (*x509.CertPool, error) { return pool(i.Authorities) }

// Config returns a configuration for the servers that the node knows, with the certificate that is the newest when a connection is made.
// Each connection is to one of the servers, and to another one if that is dead.
func (i *Identity) Config() (*rest.Config, error) {
	roots, err := i.Pool()
	if err != nil {
		return nil, fmt.Errorf("read the cluster's authority: %w", err)
	}
	first, err := serverset.Address(i.Server)
	if err != nil {
		return nil, err
	}
	set := serverset.New(first)
	set.Learn(i.more)
	i.set.Store(set)
	dialer := connrotation.NewDialer(set.Dialer().DialContext)
	i.dialer.Store(dialer)
	transport := utilnet.SetTransportDefaults(&http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 25,
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				if c := i.current.Load(); c != nil {
					return c, nil
				}
				return &tls.Certificate{}, nil
			}},
	})
	transport.DialTLSContext = set.DialTLS(func() *tls.Config { return transport.TLSClientConfig }, dialer.DialContext)
	return &rest.Config{Host: i.Server, Transport: transport}, nil
}

// manager maintains one certificate until ctx ends.
func (i *Identity) manager(ctx context.Context, client kubernetes.Interface, c certificate.Config) (certificate.Manager, error) {
	c.Ctx = &ctx
	c.ClientsetFn = func(*tls.Certificate) (kubernetes.Interface, error) { return client, nil }
	m, err := certificate.NewManager(&c)
	if err != nil {
		return nil, fmt.Errorf("rotate the node's certificate: %w", err)
	}
	return m, nil
}

// Rotate replaces the node's certificate after 70 to 90 percent of its lifetime, until ctx ends.
func (i *Identity) Rotate(ctx context.Context, client kubernetes.Interface) error {
	m, err := i.manager(ctx, client, certificate.Config{
		Name: "kubelet client certificate", SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
		Template:  &x509.CertificateRequest{Subject: subject(i.Name)},
		GetUsages: certificate.DefaultKubeletClientGetUsages, CertificateStore: i.certificates(),
	})
	if err != nil {
		return err
	}
	m.Start()
	<-ctx.Done()
	return nil
}

// Serving requests the node's serving certificate from the cluster, and replaces it before it expires and when the node's hosts change,
// until ctx ends. Until the first one is approved, no client can connect; until another is approved, the node serves the previous one.
func (i *Identity) Serving(ctx context.Context, client kubernetes.Interface,
	hosts func() []string) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	template := func() *x509.CertificateRequest {
		t := &x509.CertificateRequest{Subject: subject(i.Name)}
		t.DNSNames, t.IPAddresses = split(append(hosts(), i.Name))
		return t
	}
	m, err := i.manager(ctx, client, certificate.Config{
		Name: "kubelet serving certificate", SignerName: certificatesv1.KubeletServingSignerName, GetTemplate: template,
		GetUsages: certificate.DefaultKubeletServingGetUsages, CertificateStore: i.store(serverPair, nil),
	})
	if err != nil {
		return nil, err
	}
	m.Start()
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if c := m.Current(); c != nil {
			return c, nil
		}
		return nil, errors.New("no serving certificate available for the kubelet") // upstream's words
	}, nil
}

func split(hosts []string) (names []string, addresses []net.IP) {
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			addresses = append(addresses, ip)
		} else {
			names = append(names, h)
		}
	}
	return names, addresses
}

// selfSigned is the validity of a self-signed certificate. A node makes one at each start.
const selfSigned = 10 * 365 * 24 * time.Hour

// SelfSigned makes a self-signed serving certificate, as a kubelet does by default. Another one for other hosts has the same key, so that
// the published key stays valid.
func (i *Identity) SelfSigned(now time.Time, hosts ...string) (tls.Certificate, error) {
	i.selfSigning.Lock()
	defer i.selfSigning.Unlock()
	if i.selfKey == nil {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return tls.Certificate{}, fmt.Errorf("make key: %w", err)
		}
		i.selfKey = key
	}
	key := i.selfKey
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 63))
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make serial number: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: subject(i.Name), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(selfSigned),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	template.DNSNames, template.IPAddresses = split(append(hosts, i.Name))
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make serving certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
