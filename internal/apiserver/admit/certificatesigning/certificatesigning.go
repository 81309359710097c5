// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package certificatesigning is the CertificateSigning plug-in: a user who writes the certificate or conditions of a
// signing request must be allowed to sign for its signer.
package certificatesigning

import (
	"bytes"
	"context"
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// New makes the plug-in.
func New() admit.Plugin { return &plugin{} }

type plugin struct{ admit.Authorizing }

func (*plugin) Name() string { return "CertificateSigning" }

// Handles implements [admit.Filter].
func (*plugin) Handles(a *admit.Attributes) bool {
	return a.Is("certificates.k8s.io", "certificatesigningrequests", "status") && a.Operation == admit.Update
}

// Validate checks the permission for the signer of the stored request.
func (p *plugin) Validate(ctx context.Context, _ resource.Backend, a *admit.Attributes) error {
	if !p.Handles(a) {
		return nil
	}
	obj, old, ok := admit.ObjectsOf[*certificatesv1.CertificateSigningRequest](a)
	switch {
	case old == nil:
		return admit.Forbidden(a, fmt.Errorf("expected type CertificateSigningRequest, got: %T", a.Old)) // upstream's words
	case !ok:
		return admit.Forbidden(a, fmt.Errorf("expected type CertificateSigningRequest, got: %T", a.Object)) // upstream's words
	case bytes.Equal(old.Status.Certificate, obj.Status.Certificate) &&
		equality.Semantic.DeepEqual(old.Status.Conditions, obj.Status.Conditions):
		return nil
	case !p.Authorize.MayFor(ctx, a.User, "sign", old.Spec.SignerName):
		return admit.Forbidden(a, fmt.Errorf("user not permitted to sign requests with signerName %q", old.Spec.SignerName)) // upstream's words
	}
	return nil
}
