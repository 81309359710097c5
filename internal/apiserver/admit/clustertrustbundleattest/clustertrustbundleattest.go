// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package clustertrustbundleattest is the ClusterTrustBundleAttest plug-in: a user who writes the trust bundle of a signer
// must be allowed to attest for it.
package clustertrustbundleattest

import (
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

func (*plugin) Name() string { return "ClusterTrustBundleAttest" }

// Handles implements [admit.Filter].
func (*plugin) Handles(a *admit.Attributes) bool {
	return a.Is("certificates.k8s.io", "clustertrustbundles", "") && (a.Operation == admit.Create || a.Operation == admit.Update)
}

// Validate checks the permission, unless only fields change that garbage collection writes.
func (p *plugin) Validate(ctx context.Context, _ resource.Backend, a *admit.Attributes) error {
	if !p.Handles(a) {
		return nil
	}
	bundle, old, ok := admit.ObjectsOf[*certificatesv1.ClusterTrustBundle](a)
	switch {
	case !ok:
		return admit.Forbidden(a, fmt.Errorf("expected type ClusterTrustBundle, got: %T", a.Old)) // upstream's words
	case bundle.Spec.SignerName == "", old != nil && same(bundle, old):
		return nil
	case !p.Authorize.MayFor(ctx, a.User, "attest", bundle.Spec.SignerName):
		return admit.Forbidden(a, fmt.Errorf("user not permitted to attest for signerName %q", bundle.Spec.SignerName)) // upstream's words
	}
	return nil
}

// same reports whether two differ in nothing but owners, finalizers and who wrote them.
func same(bundle, old *certificatesv1.ClusterTrustBundle) bool {
	c := bundle.DeepCopy()
	c.OwnerReferences, c.Finalizers, c.ManagedFields = old.OwnerReferences, old.Finalizers, old.ManagedFields
	c.ResourceVersion = old.ResourceVersion
	return equality.Semantic.DeepEqual(c, old)
}
