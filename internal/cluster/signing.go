// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/util/cert"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/apiserver/reload"
	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/lifecycle"
)

// signing is the CA of each signer of CertificateSigningRequests, if files configure it, and the CA that pods trust.
type signing struct {
	of     map[string]*authorityFiles // by signer
	files  []*authorityFiles
	rootCA []byte
}

// authorityFiles is a CA from files.
type authorityFiles struct {
	options.SigningFiles
	pem  []byte // of both files, as last read
	held atomic.Pointer[controllers.Authority]
}

// readSigning reads the files, so that invalid ones are refused before anything starts.
func readSigning(o options.Signing) (*signing, error) {
	s := &signing{of: map[string]*authorityFiles{}}
	add := func(files options.SigningFiles, flag string, signers ...string) error {
		if files.CertFile == "" {
			return nil
		}
		a := &authorityFiles{SigningFiles: files}
		if _, err := a.load(); err != nil {
			return fmt.Errorf("--%s-cert-file: %w", flag, err)
		}
		s.files = append(s.files, a)
		for _, name := range signers {
			s.of[name] = a
		}
		return nil
	}
	const legacy = "kubernetes.io/legacy-unknown"
	err := errors.Join(
		add(o.All, "cluster-signing", certificatesv1.KubeletServingSignerName, certificatesv1.KubeAPIServerClientKubeletSignerName,
			certificatesv1.KubeAPIServerClientSignerName, legacy),
		add(o.KubeletServing, "cluster-signing-kubelet-serving", certificatesv1.KubeletServingSignerName),
		add(o.KubeletClient, "cluster-signing-kubelet-client", certificatesv1.KubeAPIServerClientKubeletSignerName),
		add(o.APIClient, "cluster-signing-kube-apiserver-client", certificatesv1.KubeAPIServerClientSignerName),
		add(o.LegacyUnknown, "cluster-signing-legacy-unknown", legacy),
	)
	if err != nil {
		return nil, err
	}
	if o.RootCAFile == "" {
		return s, nil
	}
	if s.rootCA, err = os.ReadFile(o.RootCAFile); err != nil {
		return nil, fmt.Errorf("error reading root-ca-file at %s: %w", o.RootCAFile, err) // upstream's words
	}
	if _, err := cert.ParseCertsPEM(s.rootCA); err != nil {
		return nil, fmt.Errorf("error parsing root-ca-file at %s: %w", o.RootCAFile, err) // upstream's words
	}
	return s, nil
}

// load reads the files and reports whether their content has changed.
func (a *authorityFiles) load() (bool, error) {
	certPEM, err := os.ReadFile(a.CertFile)
	if err != nil {
		return false, fmt.Errorf("read certificate: %w", err)
	}
	keyPEM, err := os.ReadFile(a.KeyFile)
	if err != nil {
		return false, fmt.Errorf("read key: %w", err)
	}
	all := append(append(bytes.Clone(certPEM), 0), keyPEM...)
	if bytes.Equal(all, a.pem) {
		return false, nil
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return false, fmt.Errorf("%s and %s: %w", a.CertFile, a.KeyFile, err)
	}
	if n := len(pair.Certificate); n != 1 {
		return false, fmt.Errorf("%s: expected 1 certificate, found %d", a.CertFile, n)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return false, fmt.Errorf("%s: a key of type %T cannot sign", a.KeyFile, pair.PrivateKey)
	}
	a.pem = all
	a.held.Store(&controllers.Authority{Certificate: pair.Leaf, Key: key})
	return true, nil
}

// follow reads the files again when they change, until the group is stopped. If they are unreadable, the old CA stays.
func (s *signing) follow(ctx context.Context, group *lifecycle.Group, log *slog.Logger) {
	for _, a := range s.files {
		group.Go(ctx, func(ctx context.Context) {
			reload.Watch(ctx, rereadEvery, log, func() {
				if _, err := a.load(); err != nil {
					log.ErrorContext(ctx, "Could not reload the CA of the signers", "error", err)
				}
			}, a.CertFile, a.KeyFile)
		})
	}
}

// signers returns the CAs of the signers with files.
func (s *signing) signers() map[string]func() *controllers.Authority {
	all := map[string]func() *controllers.Authority{}
	for name, a := range s.of {
		all[name] = a.held.Load
	}
	return all
}
