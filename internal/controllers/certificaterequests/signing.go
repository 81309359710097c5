// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package certificaterequests

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// Upstream's periods.
const (
	life     = 365 * 24 * time.Hour // the longest lifetime of a certificate, and the default
	leastFor = 10 * time.Minute
	backdate = 5 * time.Minute // for clocks that are behind
	short    = 8 * time.Hour   // below this lifetime, backdate does not move the end
)

// Signing describes the loop that signs approved requests with the cluster's authority.
func Signing() controllers.Controller {
	most := life
	return controllers.Controller{
		Name:    "certificatesigningrequest-signing-controller",
		Account: "certificate-controller",
		Inputs:  []schema.GroupVersionResource{requests},
		Outputs: []schema.GroupVersionResource{requests},
		Settings: []controllers.Setting{{
			Flag: signingDuration, Field: "controllers.certificateSigning.duration", Value: controllers.Value(&most),
			Usage: "Maximum validity of certificates that are signed for CertificateSigningRequests.",
		}},
		Check: func(*controllers.Cluster) error {
			return controllers.AboveZero(map[string]time.Duration{signingDuration: most})
		},
		New: func(d *controllers.Deps) (controllers.Runner, error) {
			if d.Cluster.Signer == nil && len(d.Cluster.Signers) == 0 {
				return controllers.RunnerFunc(func(ctx context.Context) error {
					<-ctx.Done()
					return nil
				}), nil
			}
			return newController(d, "csrsigning", func(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) error {
				return signApproved(ctx, d, csr, most)
			})
		},
	}
}

const signingDuration = "cluster-signing-duration"

// signers are the signers of kubernetes.io with a built-in controller, each with the function that checks its requests.
var signers = map[string]func(r *x509.CertificateRequest, asked []certificatesv1.KeyUsage) error{
	certificatesv1.KubeAPIServerClientSignerName:        apiClient,
	certificatesv1.KubeAPIServerClientKubeletSignerName: kubeletClient,
	certificatesv1.KubeletServingSignerName:             kubeletServing,
	"kubernetes.io/legacy-unknown":                      func(*x509.CertificateRequest, []certificatesv1.KeyUsage) error { return nil },
}

func signApproved(ctx context.Context, d *controllers.Deps, csr *certificatesv1.CertificateSigningRequest, most time.Duration) error {
	check := signers[csr.Spec.SignerName]
	ca := authorityFor(&d.Cluster, csr.Spec.SignerName)
	if check == nil || ca == nil || !approved(csr) || failed(csr) {
		return nil
	}
	asked, err := parse(csr.Spec.Request)
	if err != nil {
		return fmt.Errorf("parse request %s: %w", csr.Name, err)
	}
	now := d.Clock.Now()
	if err := check(asked, csr.Spec.Usages); err != nil {
		csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue, Reason: "SignerValidationFailure", Message: err.Error(),
			LastUpdateTime: metav1.NewTime(now),
		})
	} else if csr.Status.Certificate, err = Sign(ca, asked, csr.Spec.Usages, lifetime(csr.Spec.ExpirationSeconds, most), now); err != nil {
		return fmt.Errorf("sign request %s: %w", csr.Name, err)
	}
	if _, err := d.Client.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, csr, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("write status of request %s: %w", csr.Name, err)
	}
	return nil
}

// authorityFor returns the authority that signs for a signer; nil: there is none.
func authorityFor(c *controllers.Cluster, signer string) *controllers.Authority {
	if own := c.Signers[signer]; own != nil {
		return own()
	}
	return c.Signer
}

// approved reports whether a request is approved and not denied.
func approved(csr *certificatesv1.CertificateSigningRequest) bool {
	return has(csr, certificatesv1.CertificateApproved) && !has(csr, certificatesv1.CertificateDenied)
}

func failed(csr *certificatesv1.CertificateSigningRequest) bool {
	return slices.ContainsFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == certificatesv1.CertificateFailed && c.Status == corev1.ConditionTrue
	})
}

// lifetime returns the requested lifetime: at least leastFor, and at most the given one, which is also the default.
func lifetime(seconds *int32, most time.Duration) time.Duration {
	if most = cmp.Or(most, life); seconds == nil {
		return most
	}
	asked := time.Duration(*seconds) * time.Second
	if asked > most {
		return most
	}
	return max(asked, leastFor)
}

// Sign issues a certificate for a request: its subject and names, no extensions, the given usages. The certificate expires no later than
// the authority.
func Sign(ca *controllers.Authority, r *x509.CertificateRequest, asked []certificatesv1.KeyUsage, ttl time.Duration, now time.Time) ([]byte,
	error) {
	if err := r.CheckSignature(); err != nil {
		return nil, fmt.Errorf("unable to verify certificate request signature: %w", err) // upstream's words
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
	if err != nil {
		return nil, fmt.Errorf("draw serial number: %w", err)
	}
	t := &x509.Certificate{
		SerialNumber: serial, Subject: r.Subject, DNSNames: r.DNSNames, IPAddresses: r.IPAddresses,
		EmailAddresses: r.EmailAddresses, URIs: r.URIs, BasicConstraintsValid: true,
		NotBefore: now.Add(-backdate), NotAfter: now.Add(ttl),
	}
	if ttl >= short {
		t.NotAfter = now.Add(ttl - backdate)
	}
	if end := ca.Certificate.NotAfter; end.Before(t.NotAfter) {
		t.NotAfter = end
	}
	if !now.Before(ca.Certificate.NotAfter) {
		return nil, fmt.Errorf("the signer has expired: NotAfter=%v", ca.Certificate.NotAfter) // upstream's words
	}
	for _, u := range asked {
		if k, ok := keyUsages[u]; ok {
			t.KeyUsage |= k
		} else if e, ok := extendedUsages[u]; ok {
			if !slices.Contains(t.ExtKeyUsage, e) {
				t.ExtKeyUsage = append(t.ExtKeyUsage, e)
			}
		} else {
			return nil, fmt.Errorf("unrecognized usage values: %q", u) // upstream's words
		}
	}
	slices.Sort(t.ExtKeyUsage)
	der, err := x509.CreateCertificate(rand.Reader, t, ca.Certificate, r.PublicKey, ca.Key)
	if err != nil {
		return nil, fmt.Errorf("create certificate: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

var keyUsages = map[certificatesv1.KeyUsage]x509.KeyUsage{
	certificatesv1.UsageSigning:           x509.KeyUsageDigitalSignature,
	certificatesv1.UsageDigitalSignature:  x509.KeyUsageDigitalSignature,
	certificatesv1.UsageContentCommitment: x509.KeyUsageContentCommitment,
	certificatesv1.UsageKeyEncipherment:   x509.KeyUsageKeyEncipherment,
	certificatesv1.UsageKeyAgreement:      x509.KeyUsageKeyAgreement,
	certificatesv1.UsageDataEncipherment:  x509.KeyUsageDataEncipherment,
	certificatesv1.UsageCertSign:          x509.KeyUsageCertSign,
	certificatesv1.UsageCRLSign:           x509.KeyUsageCRLSign,
	certificatesv1.UsageEncipherOnly:      x509.KeyUsageEncipherOnly,
	certificatesv1.UsageDecipherOnly:      x509.KeyUsageDecipherOnly,
}

var extendedUsages = map[certificatesv1.KeyUsage]x509.ExtKeyUsage{
	certificatesv1.UsageAny:             x509.ExtKeyUsageAny,
	certificatesv1.UsageServerAuth:      x509.ExtKeyUsageServerAuth,
	certificatesv1.UsageClientAuth:      x509.ExtKeyUsageClientAuth,
	certificatesv1.UsageCodeSigning:     x509.ExtKeyUsageCodeSigning,
	certificatesv1.UsageEmailProtection: x509.ExtKeyUsageEmailProtection,
	certificatesv1.UsageSMIME:           x509.ExtKeyUsageEmailProtection,
	certificatesv1.UsageIPsecEndSystem:  x509.ExtKeyUsageIPSECEndSystem,
	certificatesv1.UsageIPsecTunnel:     x509.ExtKeyUsageIPSECTunnel,
	certificatesv1.UsageIPsecUser:       x509.ExtKeyUsageIPSECUser,
	certificatesv1.UsageTimestamping:    x509.ExtKeyUsageTimeStamping,
	certificatesv1.UsageOCSPSigning:     x509.ExtKeyUsageOCSPSigning,
	certificatesv1.UsageMicrosoftSGC:    x509.ExtKeyUsageMicrosoftServerGatedCrypto,
	certificatesv1.UsageNetscapeSGC:     x509.ExtKeyUsageNetscapeServerGatedCrypto,
}
