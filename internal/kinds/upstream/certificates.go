// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/apis/certificates/validation"
	"k8s.io/utils/clock"
)

// CertificateSigningRequest validates signing requests; [CertificateApproval] validates their approval.
func CertificateSigningRequest() Checks {
	return Checks{
		Create: created(validation.ValidateCertificateSigningRequestCreate),
		Update: updated(validation.ValidateCertificateSigningRequestUpdate),
		Status: updated(validation.ValidateCertificateSigningRequestStatusUpdate, "status"),
	}
}

// CertificateApproval validates the approval of a signing request.
func CertificateApproval() UpdateCheck {
	return updated(validation.ValidateCertificateSigningRequestApprovalUpdate, "approval")
}

// ClusterTrustBundle validates trust bundles.
func ClusterTrustBundle() Checks {
	return Checks{
		Create: created(func(b *certificates.ClusterTrustBundle) field.ErrorList {
			return validation.ValidateClusterTrustBundle(b, validation.ValidateClusterTrustBundleOptions{})
		}),
		Update: updated(validation.ValidateClusterTrustBundleUpdate),
	}
}

// PodCertificateRequest validates pods' certificate requests.
func PodCertificateRequest() Checks {
	return Checks{
		Create: created(validation.ValidatePodCertificateRequestCreate),
		Update: updated(validation.ValidatePodCertificateRequestUpdate),
		Status: updated(func(r, old *certificates.PodCertificateRequest) field.ErrorList {
			return validation.ValidatePodCertificateRequestStatusUpdate(r, old, clock.RealClock{})
		}, "status"),
	}
}
