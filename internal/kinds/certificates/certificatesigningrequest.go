// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package certificates describes the kinds of the group certificates.k8s.io, a file each.
package certificates

import (
	"context"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// CertificateSigningRequest describes signing requests, with the subresources approval and status. The server takes the requesting user
// from the request, never from its body.
func CertificateSigningRequest() *resource.Descriptor {
	check := upstream.CertificateSigningRequest()
	return kind.Describe[*certificatesv1.CertificateSigningRequest](resource.Descriptor{
		Group:      "certificates.k8s.io",
		Resource:   "certificatesigningrequests",
		Kind:       "CertificateSigningRequest",
		ShortNames: []string{"csr"},
		FieldNames: []string{"spec.signerName"},
		Fields: kind.Fields(func(c *certificatesv1.CertificateSigningRequest) fields.Set {
			return fields.Set{"spec.signerName": c.Spec.SignerName}
		}),
		Strategy: resource.Strategy{
			PrepareCreate: prepareRequest,
			PrepareUpdate: kind.OnUpdate(func(c, old *certificatesv1.CertificateSigningRequest) {
				c.Spec, c.Status = old.Spec, old.Status
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
		},
		Subresources: []resource.Subresource{
			kind.Window("approval", func(c, old *certificatesv1.CertificateSigningRequest) {
				setTimes(c, old)
				conditions := c.Status.Conditions
				c.Spec, c.Status = old.Spec, old.Status
				c.Status.Conditions = conditions
			}, upstream.CertificateApproval()),
			kind.Status(func(c, old *certificatesv1.CertificateSigningRequest) {
				c.Spec = old.Spec
				keepConditions(c, old, certificatesv1.CertificateApproved)
				keepConditions(c, old, certificatesv1.CertificateDenied)
				setTimes(c, old)
			}, check.Status),
		},
	})
}

// prepareRequest writes the requesting user into a new request.
func prepareRequest(ctx context.Context, obj resource.Object) {
	c, ok := obj.(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return
	}
	c.Spec.Username, c.Spec.UID, c.Spec.Groups, c.Spec.Extra = "", "", nil, nil
	if user, ok := request.UserFrom(ctx); ok {
		c.Spec.Username, c.Spec.UID, c.Spec.Groups = user.GetName(), user.GetUID(), user.GetGroups()
		if extra := user.GetExtra(); len(extra) > 0 {
			c.Spec.Extra = map[string]certificatesv1.ExtraValue{}
			for key, values := range extra {
				c.Spec.Extra[key] = values
			}
		}
	}
	c.Status = certificatesv1.CertificateSigningRequestStatus{}
}

// keepConditions restores the old conditions of a type that only the approval subresource may change.
func keepConditions(c, old *certificatesv1.CertificateSigningRequest, t certificatesv1.RequestConditionType) {
	find := func(of *certificatesv1.CertificateSigningRequest) (at []int) {
		for i := range of.Status.Conditions {
			if of.Status.Conditions[i].Type == t {
				at = append(at, i)
			}
		}
		return at
	}
	now, was := find(c), find(old)
	if len(now) != len(was) {
		return
	}
	for i := range was {
		c.Status.Conditions[now[i]] = old.Status.Conditions[was[i]]
	}
}

// setTimes sets missing times of conditions.
func setTimes(c, old *certificatesv1.CertificateSigningRequest) {
	now := metav1.Now()
	for i := range c.Status.Conditions {
		cond := &c.Status.Conditions[i]
		if cond.LastUpdateTime.IsZero() {
			cond.LastUpdateTime = now
		}
		if !cond.LastTransitionTime.IsZero() {
			continue
		}
		cond.LastTransitionTime = now
		for _, was := range old.Status.Conditions {
			if was.Type == cond.Type && was.Status == cond.Status && !was.LastTransitionTime.IsZero() {
				cond.LastTransitionTime = was.LastTransitionTime
				break
			}
		}
	}
}
