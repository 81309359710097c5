// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package servingkey identifies the serving key of a node whose certificate the cluster has not signed: the node publishes
// the key's digest on its Node, which the NodeRestriction admission prevents other nodes from writing. The API server
// accepts a connection to that node only if its certificate has that key.
package servingkey

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
)

// Annotation is the annotation of a Node with the key's digest.
const Annotation = "node.mortise.dev/kubelet-serving-key"

// Of is the digest of a certificate's key: SHA-256 of its SubjectPublicKeyInfo, in base64, as in RFC 7469.
func Of(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return "sha256/" + base64.StdEncoding.EncodeToString(sum[:])
}

// Published is the key that a node with this config publishes. It is empty while the node has no certificate, and when its
// clients' CA, the cluster's, has signed the certificate: clients then verify it without.
func Published(config *tls.Config) string {
	leaf, more := served(config)
	if leaf == nil {
		return ""
	}
	if config.ClientCAs != nil {
		between := x509.NewCertPool()
		for _, c := range more {
			between.AddCert(c)
		}
		_, err := leaf.Verify(x509.VerifyOptions{
			Roots: config.ClientCAs, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, CurrentTime: leaf.NotBefore,
		})
		if err == nil {
			return ""
		}
	}
	return Of(leaf)
}

// served is the certificate that clients are shown, and those after it.
func served(config *tls.Config) (leaf *x509.Certificate, more []*x509.Certificate) {
	var pair *tls.Certificate
	switch {
	case config == nil:
		return nil, nil
	case config.GetCertificate != nil:
		var err error
		if pair, err = config.GetCertificate(&tls.ClientHelloInfo{}); err != nil {
			return nil, nil
		}
	case len(config.Certificates) > 0:
		pair = &config.Certificates[0]
	}
	if pair == nil {
		return nil, nil
	}
	for _, der := range pair.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, nil
		}
		more = append(more, c)
	}
	if len(more) == 0 {
		return nil, nil
	}
	return more[0], more[1:]
}
