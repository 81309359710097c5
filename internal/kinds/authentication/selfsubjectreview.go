// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package authentication describes the kinds of the group authentication.k8s.io: reviews that the server answers and does not store.
package authentication

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/resource"
)

// SelfSubjectReview describes reviews of the requesting user.
func SelfSubjectReview() *resource.Descriptor {
	return kind.Describe[*authenticationv1.SelfSubjectReview](resource.Descriptor{
		Group:    "authentication.k8s.io",
		Resource: "selfsubjectreviews",
		Kind:     "SelfSubjectReview",
		Verbs:    []string{"create"},
		Create: func(ctx context.Context, _ resource.Backend, obj resource.Object, _ *metav1.CreateOptions) (resource.Object, error) {
			if _, ok := obj.(*authenticationv1.SelfSubjectReview); !ok {
				return nil, apierrors.NewBadRequest(fmt.Sprintf("not a SelfSubjectReview: %T", obj))
			}
			u, ok := request.UserFrom(ctx)
			if !ok {
				return nil, apierrors.NewBadRequest("no user present on request")
			}
			return &authenticationv1.SelfSubjectReview{
				ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Now()},
				Status:     authenticationv1.SelfSubjectReviewStatus{UserInfo: info(u)},
			}, nil
		},
	})
}

// info converts a user to the form in reviews.
func info(u user.Info) authenticationv1.UserInfo {
	out := authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(),
		Extra: map[string]authenticationv1.ExtraValue{}}
	for key, values := range u.GetExtra() {
		out.Extra[key] = values
	}
	return out
}
