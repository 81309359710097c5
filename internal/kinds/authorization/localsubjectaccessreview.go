// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authorization

import (
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// LocalSubjectAccessReview describes reviews of a user's access in one namespace.
func LocalSubjectAccessReview(may Authorize) *resource.Descriptor {
	d := question("localsubjectaccessreviews", "LocalSubjectAccessReview", true)
	d.Create = func(ctx context.Context, _ resource.Backend, obj resource.Object, _ *metav1.CreateOptions) (resource.Object, error) {
		r, ok := obj.(*authorizationv1.LocalSubjectAccessReview)
		if !ok {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("not a LocalSubjectAccessReview: %T", obj))
		}
		if errs := upstream.LocalSubjectAccessReview(ctx, r); len(errs) > 0 {
			return nil, refuse(errs)
		}
		a := of(subject(&r.Spec), r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
		r.Status = may.answer(ctx, a)
		return r, nil
	}
	return kind.Describe[*authorizationv1.LocalSubjectAccessReview](d)
}
