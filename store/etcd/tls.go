// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"
)

// LoadTLS reads the authorities that sign the members' certificates, and the client's own certificate and key. Empty names leave them out;
// without any, the result is nil.
func LoadTLS(caFile, certFile, keyFile string) (*tls.Config, error) {
	if caFile == "" && certFile == "" && keyFile == "" {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if caFile != "" {
		pem, err := os.ReadFile(caFile)
		if err != nil {
			return nil, fmt.Errorf("read etcd's authorities: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read etcd's authorities: %s holds no certificate", caFile)
		}
	}
	if (certFile == "") != (keyFile == "") {
		return nil, errors.New("a certificate for etcd needs its key, and a key its certificate")
	}
	if certFile != "" {
		pair, err := tls.LoadX509KeyPair(certFile, keyFile)
		if err != nil {
			return nil, fmt.Errorf("read the certificate for etcd: %w", err)
		}
		if now := time.Now(); now.After(pair.Leaf.NotAfter) || now.Before(pair.Leaf.NotBefore) {
			return nil, fmt.Errorf("the certificate for etcd in %s is valid from %s to %s, and it is %s now", certFile,
				pair.Leaf.NotBefore.Format(time.RFC3339), pair.Leaf.NotAfter.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
		}
		// Read again for each connection, so that a renewed certificate counts without a restart.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(certFile, keyFile)
			return &pair, err
		}
	}
	return config, nil
}

// CheckServers refuses what is not a list of URLs of members.
func CheckServers(servers []string) error {
	if len(servers) == 0 {
		return errors.New("store etcd needs the URLs of etcd's servers")
	}
	for _, s := range servers {
		u, err := url.Parse(s)
		if err != nil {
			return fmt.Errorf("etcd server %q: %w", s, err)
		}
		if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return fmt.Errorf("etcd server %q: want http://HOST:PORT or https://HOST:PORT", s)
		}
	}
	return nil
}
