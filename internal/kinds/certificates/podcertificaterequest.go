// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"context"
	"errors"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// Authorize decides whether a user is authorized for a request.
type Authorize func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error)

// PodCertificateRequest describes pods' certificate requests, with the subresource status. Only users that are authorized to sign for the
// signer may change the status.
func PodCertificateRequest(authorize Authorize) *resource.Descriptor {
	check := upstream.PodCertificateRequest()
	return kind.StoredAs("v1beta1", kind.Describe[*certificatesv1.PodCertificateRequest](resource.Descriptor{
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
			}, maySign(authorize, check.Status)),
		},
	}))
}

// maySign adds a check to a validation: a user who changes a status must be authorized to sign for the request's signer.
func maySign(authorize Authorize, check func(ctx context.Context, obj, old resource.Object) field.ErrorList) func(ctx context.Context, obj,
	old resource.Object) field.ErrorList {
	return func(ctx context.Context, obj, old resource.Object) field.ErrorList {
		if errs := check(ctx, obj, old); len(errs) > 0 {
			return errs
		}
		now, is := obj.(*certificatesv1.PodCertificateRequest)
		was, had := old.(*certificatesv1.PodCertificateRequest)
		if !is || !had || equality.Semantic.DeepEqual(now.Status, was.Status) {
			return nil
		}
		path := field.NewPath("spec", "signerName")
		user, ok := request.UserFrom(ctx)
		if !ok {
			return field.ErrorList{field.InternalError(path,
				errors.New(`cannot determine calling user to perform "sign" check`))} // upstream's words
		}
		domain, _, _ := strings.Cut(was.Spec.SignerName, "/")
		for _, name := range []string{was.Spec.SignerName, domain + "/*"} {
			d, _, err := authorize(ctx, authorizer.AttributesRecord{
				User: user, Verb: "sign", Name: name, APIGroup: "certificates.k8s.io", APIVersion: "*", Resource: "signers", ResourceRequest: true,
			})
			if err == nil && d == authorizer.DecisionAllow {
				return nil
			}
		}
		return field.ErrorList{field.Forbidden(path, fmt.Sprintf("User %q is not permitted to \"sign\" for signer %q", user.GetName(),
			was.Spec.SignerName))} // upstream's words
	}
}
