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

// PodCertificateRequest describes pods' requests for certificates, with the subresource status.
func PodCertificateRequest() *resource.Descriptor {
	check := upstream.PodCertificateRequest()
	return kind.Describe[certificatesv1.PodCertificateRequest](resource.Descriptor{
		Group:      "certificates.k8s.io",
		Resource:   "podcertificaterequests",
		Kind:       "PodCertificateRequest",
		Namespaced: true,
		FieldNames: []string{"spec.signerName", "spec.podName", "spec.nodeName"},
		Fields: kind.Fields(func(p *certificatesv1.PodCertificateRequest) fields.Set {
			return fields.Set{"spec.signerName": p.Spec.SignerName, "spec.podName": p.Spec.PodName, "spec.nodeName": string(p.Spec.NodeName)}
		}),
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(p *certificatesv1.PodCertificateRequest) {
				p.Status = certificatesv1.PodCertificateRequestStatus{}
			}),
			PrepareUpdate: kind.OnUpdate(func(p, old *certificatesv1.PodCertificateRequest) {
				p.Status = old.Status
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Conditional:    true,
		},
		Subresources: []resource.Subresource{
			kind.Status(func(p, old *certificatesv1.PodCertificateRequest) {
				p.Spec = old.Spec
				kind.KeepMeta(&p.ObjectMeta, &old.ObjectMeta)
			}, check.Status),
		},
	})
}
