// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package certificateapproval is the CertificateApproval plug-in: a user who approves or denies a signing request must be
// allowed to approve for its signer.
package certificateapproval

import (
	"context"
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// New makes the plug-in.
func New() admit.Plugin { return &plugin{} }

type plugin struct{ admit.Authorizing }

func (*plugin) Name() string { return "CertificateApproval" }

// Handles implements [admit.Filter].
func (*plugin) Handles(a *admit.Attributes) bool {
	return a.Is("certificates.k8s.io", "certificatesigningrequests", "approval") && a.Operation == admit.Update
}

// Validate checks the permission for the signer of the stored request.
func (p *plugin) Validate(ctx context.Context, _ resource.Backend, a *admit.Attributes) error {
	if !p.Handles(a) {
		return nil
	}
	_, old, _ := admit.ObjectsOf[*certificatesv1.CertificateSigningRequest](a)
	if old == nil {
		return admit.Forbidden(a, fmt.Errorf("expected type CertificateSigningRequest, got: %T", a.Old)) // upstream's words
	}
	if !p.Authorize.MayFor(ctx, a.User, "approve", old.Spec.SignerName) {
		// upstream's words
		return admit.Forbidden(a, fmt.Errorf("user not permitted to approve requests with signerName %q", old.Spec.SignerName))
	}
	return nil
}
