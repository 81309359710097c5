// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package certificatesubjectrestriction is the CertificateSubjectRestriction plug-in: it rejects signing requests for the
// group system:masters to the signer of API client certificates.
package certificatesubjectrestriction

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// New makes the plug-in.
func New() admit.Plugin { return plugin{} }

type plugin struct{}

func (plugin) Name() string { return "CertificateSubjectRestriction" }

// Handles implements [admit.Filter].
func (plugin) Handles(a *admit.Attributes) bool {
	return a.Is("certificates.k8s.io", "certificatesigningrequests", "") && a.Operation == admit.Create
}

// Validate checks the organizations that a new request asks for.
func (p plugin) Validate(_ context.Context, _ resource.Backend, a *admit.Attributes) error {
	if !p.Handles(a) {
		return nil
	}
	csr, _, ok := admit.ObjectsOf[*certificatesv1.CertificateSigningRequest](a)
	if !ok {
		return admit.Forbidden(a, fmt.Errorf("expected type CertificateSigningRequest, got: %T", a.Object)) // upstream's words
	}
	if csr.Spec.SignerName != certificatesv1.KubeAPIServerClientSignerName {
		return nil
	}
	asked, err := parse(csr.Spec.Request)
	if err != nil {
		return admit.Forbidden(a, fmt.Errorf("failed to parse CSR: %v", err)) // upstream's words
	}
	if slices.Contains(asked.Subject.Organization, user.SystemPrivilegedGroup) {
		// upstream's words
		return admit.Forbidden(a, fmt.Errorf("use of %s signer with system:masters group is not allowed",
			certificatesv1.KubeAPIServerClientSignerName))
	}
	return nil
}

func parse(data []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST") // upstream's words
	}
	return x509.ParseCertificateRequest(block.Bytes)
}
