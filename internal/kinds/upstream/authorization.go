// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/authorization"
	"k8s.io/kubernetes/pkg/apis/authorization/validation"
)

// SubjectAccessReview validates reviews of a user's access.
func SubjectAccessReview(ctx context.Context, r *authorizationv1.SubjectAccessReview) field.ErrorList {
	return declared{}.run(ctx, r, nil, validation.ValidateSubjectAccessReview(internal[*authorization.SubjectAccessReview](r)))
}

// SelfSubjectAccessReview validates reviews of the requesting user's access.
func SelfSubjectAccessReview(ctx context.Context, r *authorizationv1.SelfSubjectAccessReview) field.ErrorList {
	return declared{}.run(ctx, r, nil, validation.ValidateSelfSubjectAccessReview(internal[*authorization.SelfSubjectAccessReview](r)))
}

// LocalSubjectAccessReview validates reviews of a user's access in one namespace.
func LocalSubjectAccessReview(ctx context.Context, r *authorizationv1.LocalSubjectAccessReview) field.ErrorList {
	return declared{}.run(ctx, r, nil, validation.ValidateLocalSubjectAccessReview(internal[*authorization.LocalSubjectAccessReview](r)))
}
