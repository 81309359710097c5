// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package certificaterequests approves, signs and cleans up certificate requests.
//
// [Approving] approves a kubelet's request for its own certificate, or a bootstrapping user's request for a kubelet, if an access review of
// the requesting user allows it. [Signing] signs approved requests for the four signers of kubernetes.io with the cluster's authority; a
// request that breaks a signer's rules gets the condition Failed. [Cleaner] and [PodCleaner] delete requests at the moment they expire, not
// at fixed intervals.
package certificaterequests

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/certificates/v1"

	"github.com/mortise-dev/mortise/internal/controllers"
)

var (
	requests = certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests")
	reviews  = authorizationv1.SchemeGroupVersion.WithResource("subjectaccessreviews")
)

// Approving describes the loop that approves kubelets' requests.
func Approving() controllers.Controller {
	return controllers.Controller{
		Name:    "certificatesigningrequest-approving-controller",
		Account: "certificate-controller",
		Inputs:  []schema.GroupVersionResource{requests},
		Outputs: []schema.GroupVersionResource{requests, reviews},
		New: func(d *controllers.Deps) (controllers.Runner, error) {
			return newController(d, "csrapproving", func(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) error {
				return approve(ctx, d.Client, csr)
			})
		},
	}
}

// newController builds a controller that calls work with a copy of each created or updated request.
func newController(d *controllers.Deps, name string,
	work func(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) error) (controllers.Runner, error) {
	informer := d.Informers.Certificates().V1().CertificateSigningRequests()
	queue := controllers.NewQueue[string](d, name, 5)
	err := controllers.Subscribe(d, informer.Informer(), controllers.Handler[*certificatesv1.CertificateSigningRequest]{
		Add:    func(c *certificatesv1.CertificateSigningRequest) { queue.Add(c.Name) },
		Update: func(_, c *certificatesv1.CertificateSigningRequest) { queue.Add(c.Name) },
	})
	lister := informer.Lister()
	return controllers.RunnerFunc(func(ctx context.Context) error {
		return queue.Run(ctx, func(ctx context.Context, name string) error {
			csr, err := get(lister, name)
			if csr == nil || err != nil || len(csr.Status.Certificate) > 0 {
				return err
			}
			return work(ctx, csr.DeepCopy())
		})
	}), err
}

func get(lister listers.CertificateSigningRequestLister, name string) (*certificatesv1.CertificateSigningRequest, error) {
	csr, err := lister.Get(name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return csr, err
}

// rule is one kind of request that the controller approves, and the access that its user needs.
type rule struct {
	subresource, message string
	self                 bool // the user asks for a certificate of its own name
}

var rules = []rule{
	{"selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview.", true},
	{"nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview.", false},
}

// approve approves a kubelet's client certificate if the requesting user may have it approved automatically.
func approve(ctx context.Context, client kubernetes.Interface, csr *certificatesv1.CertificateSigningRequest) error {
	if has(csr, certificatesv1.CertificateApproved) || has(csr, certificatesv1.CertificateDenied) {
		return nil
	}
	asked, err := parse(csr.Spec.Request)
	if err != nil {
		return fmt.Errorf("parse request %s: %w", csr.Name, err)
	}
	if csr.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName || kubeletClient(asked, csr.Spec.Usages) != nil {
		return nil
	}
	for _, r := range rules {
		if r.self && csr.Spec.Username != asked.Subject.CommonName {
			continue
		}
		extra := make(map[string]authorizationv1.ExtraValue, len(csr.Spec.Extra))
		for k, v := range csr.Spec.Extra {
			extra[k] = authorizationv1.ExtraValue(v)
		}
		review, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx,
			&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: csr.Spec.Username, UID: csr.Spec.UID, Groups: csr.Spec.Groups, Extra: extra,
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Group: "certificates.k8s.io", Resource: "certificatesigningrequests", Subresource: r.subresource, Verb: "create", Version: "*",
				},
			}}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("review access of %s: %w", csr.Spec.Username, err)
		}
		if !review.Status.Allowed {
			continue
		}
		csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AutoApproved", Message: r.message,
		})
		if _, err := client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("approve request %s: %w", csr.Name, err)
		}
		return nil
	}
	// An administrator may add a role that allows it later: the queue retries with growing back-off.
	return fmt.Errorf("approve request %s: the access review of %s does not allow it", csr.Name, csr.Spec.Username)
}

func has(csr *certificatesv1.CertificateSigningRequest, t certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == t })
}

func parse(data []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST") // upstream's words
	}
	return x509.ParseCertificateRequest(block.Bytes)
}

// usages checks that the request asks for exactly these usages, with or without key encipherment, which only RSA keys need.
func usages(asked []certificatesv1.KeyUsage, auth certificatesv1.KeyUsage) error {
	set := map[certificatesv1.KeyUsage]bool{}
	for _, u := range asked {
		set[u] = true
	}
	ok := set[certificatesv1.UsageDigitalSignature] && set[auth]
	delete(set, certificatesv1.UsageDigitalSignature)
	delete(set, certificatesv1.UsageKeyEncipherment)
	delete(set, auth)
	if !ok || len(set) > 0 {
		all := []string{string(auth), string(certificatesv1.UsageDigitalSignature), string(certificatesv1.UsageKeyEncipherment)}
		slices.Sort(all)
		return fmt.Errorf("usages did not match %v", all) // upstream's words
	}
	return nil
}

// kubeletClient returns what is wrong with a request for a kubelet's client certificate.
func kubeletClient(r *x509.CertificateRequest, asked []certificatesv1.KeyUsage) error {
	switch {
	case !slices.Equal(r.Subject.Organization, []string{"system:nodes"}):
		return errors.New("subject organization is not system:nodes") // upstream's words
	case len(r.DNSNames) > 0:
		return errors.New("DNS subjectAltNames are not allowed") // upstream's words
	case len(r.EmailAddresses) > 0:
		return errors.New("Email subjectAltNames are not allowed") // upstream's words
	case len(r.IPAddresses) > 0:
		return errors.New("IP subjectAltNames are not allowed") // upstream's words
	case len(r.URIs) > 0:
		return errors.New("URI subjectAltNames are not allowed") // upstream's words
	case !strings.HasPrefix(r.Subject.CommonName, "system:node:"):
		return errors.New("subject common name does not begin with system:node:") // upstream's words
	}
	return usages(asked, certificatesv1.UsageClientAuth)
}

// kubeletServing returns what is wrong with a request for a kubelet's serving certificate.
func kubeletServing(r *x509.CertificateRequest, asked []certificatesv1.KeyUsage) error {
	switch {
	case !slices.Equal(r.Subject.Organization, []string{"system:nodes"}):
		return errors.New("subject organization is not system:nodes") // upstream's words
	case len(r.DNSNames) == 0 && len(r.IPAddresses) == 0:
		return errors.New("DNS or IP subjectAltName is required") // upstream's words
	case len(r.EmailAddresses) > 0:
		return errors.New("Email subjectAltNames are not allowed") // upstream's words
	case len(r.URIs) > 0:
		return errors.New("URI subjectAltNames are not allowed") // upstream's words
	}
	if err := usages(asked, certificatesv1.UsageServerAuth); err != nil {
		return err
	}
	if !strings.HasPrefix(r.Subject.CommonName, "system:node:") {
		return errors.New("subject common name does not begin with system:node:") // upstream's words
	}
	return nil
}

// apiClient returns what is wrong with a request for an API client's certificate.
func apiClient(_ *x509.CertificateRequest, asked []certificatesv1.KeyUsage) error {
	client := false
	for _, u := range asked {
		switch u {
		case certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment:
		case certificatesv1.UsageClientAuth:
			client = true
		default:
			return fmt.Errorf("invalid usage for client certificate: %s", u) // upstream's words
		}
	}
	if !client {
		return fmt.Errorf("missing required usage for client certificate: %s", certificatesv1.UsageClientAuth) // upstream's words
	}
	return nil
}
