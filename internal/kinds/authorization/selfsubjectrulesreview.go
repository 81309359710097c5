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
	"github.com/mortise-dev/mortise/resource"
)

// SelfSubjectRulesReview describes reviews of the requesting user's rules in a namespace.
func SelfSubjectRulesReview(rules Rules) *resource.Descriptor {
	d := question("selfsubjectrulesreviews", "SelfSubjectRulesReview", false)
	d.Create = func(ctx context.Context, _ resource.Backend, obj resource.Object, _ *metav1.CreateOptions) (resource.Object, error) {
		r, ok := obj.(*authorizationv1.SelfSubjectRulesReview)
		if !ok {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("not a SelfSubjectRulesReview: %T", obj))
		}
		u, ok := request.UserFrom(ctx)
		if !ok {
			return nil, apierrors.NewBadRequest("no user present on request")
		}
		if r.Spec.Namespace == "" {
			return nil, apierrors.NewBadRequest("no namespace on request")
		}
		resources, paths, incomplete, err := rules(ctx, u, r.Spec.Namespace)
		out := &authorizationv1.SelfSubjectRulesReview{Status: authorizationv1.SubjectRulesReviewStatus{
			ResourceRules:    append([]authorizationv1.ResourceRule{}, resources...),
			NonResourceRules: append([]authorizationv1.NonResourceRule{}, paths...),
			Incomplete:       incomplete,
		}}
		if err != nil {
			out.Status.EvaluationError = err.Error()
		}
		return out, nil
	}
	return kind.Describe[*authorizationv1.SelfSubjectRulesReview](d)
}
