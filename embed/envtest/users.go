// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
)

// certificates authenticates the users of an environment by client certificates, as envtest does: it is the [Authn] of an API server
// without another one. The API server trusts its authority beside the cluster's own.
type certificates struct {
	file      string // of the authority's certificate
	authority *x509.Certificate
	key       *ecdsa.PrivateKey
}

// certificateLife is how long the certificates of an environment are valid.
const certificateLife = 7 * 24 * time.Hour

// Configure implements [Authn].
func (c *certificates) Configure(dir string, args *Arguments) error {
	c.file = filepath.Join(dir, "client-cert-auth-ca.crt")
	args.Set("client-ca-file", c.file)
	return nil
}

// Start implements [Authn].
func (c *certificates) Start() (err error) {
	of := &x509.Certificate{
		Subject: pkix.Name{CommonName: "envtest-environment"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	if c.authority, c.key, err = issue(of, of, nil); err != nil {
		return err
	}
	if err := os.WriteFile(c.file, encode("CERTIFICATE", c.authority.Raw), 0o600); err != nil {
		return fmt.Errorf("write certificate: %w", err)
	}
	return nil
}

// AddUser implements [Authn].
func (c *certificates) AddUser(user User, base *rest.Config) (*rest.Config, error) {
	of := &x509.Certificate{
		Subject:  pkix.Name{CommonName: user.Name, Organization: user.Groups},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	certificate, key, err := issue(of, c.authority, c.key)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	config := rest.CopyConfig(base)
	config.CertData, config.KeyData = encode("CERTIFICATE", certificate.Raw), encode("EC PRIVATE KEY", der)
	return config, nil
}

// Stop implements [Authn].
func (*certificates) Stop() error { return nil }

// issue makes a certificate and its key. Without a signer, the certificate signs itself.
func issue(of, authority *x509.Certificate, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate key: %w", err)
	}
	if signer == nil {
		signer = key
	}
	if of.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return nil, nil, fmt.Errorf("draw serial number: %w", err)
	}
	of.NotBefore, of.NotAfter = time.Now().Add(-5*time.Minute), time.Now().Add(certificateLife)
	der, err := x509.CreateCertificate(rand.Reader, of, authority, &key.PublicKey, signer)
	if err != nil {
		return nil, nil, fmt.Errorf("sign certificate: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("parse certificate: %w", err)
	}
	return certificate, key, nil
}

// encode returns PEM.
func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// AddUser adds a user to the started environment. The user has a client certificate, so that KubeConfig and Kubectl work in other
// processes, or what the Authn of ControlPlane.GetAPIServer().SecureServing gives. Base has settings such as QPS; nil: the defaults.
func (e *Environment) AddUser(user User, base *rest.Config) (*AuthenticatedUser, error) {
	return e.ControlPlane.AddUser(user, base)
}

// startUsers prepares the authentication of users, before the API server starts.
func (e *Environment) startUsers() (err error) {
	s := e.ControlPlane.GetAPIServer()
	if s.CertDir == "" {
		if s.CertDir, err = os.MkdirTemp("", "envtest"); err != nil {
			return err
		}
		e.state.temporary = s.CertDir
	}
	if at := s.SecureServing.ListenAddr; at.Address != "" && at.Port != "" && e.Server.Listen == "" {
		e.Server.Listen = net.JoinHostPort(at.Address, at.Port)
	}
	if s.SecureServing.Authn == nil {
		s.SecureServing.Authn = &certificates{}
	}
	if err := s.SecureServing.Configure(s.CertDir, s.Configure()); err != nil {
		return err
	}
	if e.ControlPlane.KubectlPath == "" && os.Getenv("TEST_ASSET_KUBECTL") == "" { // upstream reads that
		e.ControlPlane.KubectlPath = e.findKubectl()
	}
	return s.SecureServing.Start()
}

// findKubectl returns the path of kubectl, from where upstream looks for it or else from the PATH; nothing if there is none.
func (e *Environment) findKubectl() string {
	for _, dir := range []string{e.BinaryAssetsDirectory, os.Getenv("KUBEBUILDER_ASSETS"), "/usr/local/kubebuilder/bin"} {
		if dir == "" {
			continue
		}
		if path, err := exec.LookPath(filepath.Join(dir, "kubectl")); err == nil {
			return path
		}
	}
	path, err := exec.LookPath("kubectl")
	if err != nil {
		return ""
	}
	return path
}

// serve tells users where the API server is.
func (e *Environment) serve() error {
	at, err := url.Parse(e.Config.Host)
	if err != nil {
		return fmt.Errorf("parse the URL of the API server: %w", err)
	}
	s := &e.ControlPlane.GetAPIServer().SecureServing
	s.Address, s.Port, s.CA = at.Hostname(), at.Port(), e.Config.CAData
	return nil
}

// stopUsers removes what startUsers has made.
func (e *Environment) stopUsers() error {
	s := e.ControlPlane.GetAPIServer()
	var err error
	if s.SecureServing.Authn != nil {
		err = s.SecureServing.Stop()
	}
	if e.state.temporary != "" {
		err = errors.Join(err, os.RemoveAll(e.state.temporary))
		s.CertDir, e.state.temporary = "", ""
	}
	return err
}
