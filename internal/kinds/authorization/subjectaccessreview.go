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

// SubjectAccessReview describes reviews of a user's access.
func SubjectAccessReview(may Authorize) *resource.Descriptor {
	d := question("subjectaccessreviews", "SubjectAccessReview", false)
	d.Create = func(ctx context.Context, _ resource.Backend, obj resource.Object, _ *metav1.CreateOptions) (resource.Object, error) {
		r, ok := obj.(*authorizationv1.SubjectAccessReview)
		if !ok {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("not a SubjectAccessReview: %T", obj))
		}
		if errs := upstream.SubjectAccessReview(ctx, r); len(errs) > 0 {
			return nil, refuse(errs)
		}
		a := of(subject(&r.Spec), r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
		r.Status = may.answer(ctx, a)
		return r, nil
	}
	return kind.Describe[*authorizationv1.SubjectAccessReview](d)
}
