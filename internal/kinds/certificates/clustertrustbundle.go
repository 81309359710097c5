// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// ClusterTrustBundle describes trust bundles.
func ClusterTrustBundle() *resource.Descriptor {
	check := upstream.ClusterTrustBundle()
	return kind.StoredAs("v1beta1", kind.Describe[*certificatesv1.ClusterTrustBundle](resource.Descriptor{
		Group:      "certificates.k8s.io",
		Resource:   "clustertrustbundles",
		Kind:       "ClusterTrustBundle",
		FieldNames: []string{"spec.signerName"},
		Fields: kind.Fields(func(c *certificatesv1.ClusterTrustBundle) fields.Set {
			return fields.Set{"spec.signerName": c.Spec.SignerName}
		}),
		Strategy: resource.Strategy{
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Conditional:    true,
		},
	}))
}
