// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authorization

import (
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// SelfSubjectAccessReview describes reviews of the requesting user's access.
func SelfSubjectAccessReview(may Authorize) *resource.Descriptor {
	d := question("selfsubjectaccessreviews", "SelfSubjectAccessReview", false)
	d.Create = func(ctx context.Context, _ resource.Backend, obj resource.Object, _ *metav1.CreateOptions) (resource.Object, error) {
		r, ok := obj.(*authorizationv1.SelfSubjectAccessReview)
		if !ok {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("not a SelfSubjectAccessReview: %T", obj))
		}
		if errs := upstream.SelfSubjectAccessReview(ctx, r); len(errs) > 0 {
			return nil, refuse(errs)
		}
		u, ok := request.UserFrom(ctx)
		if !ok {
			return nil, apierrors.NewBadRequest("no user present on request")
		}
		a := of(u, r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
		r.Status = may.answer(ctx, a)
		return r, nil
	}
	return kind.Describe[*authorizationv1.SelfSubjectAccessReview](d)
}
