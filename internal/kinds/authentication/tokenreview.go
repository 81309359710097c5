// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authentication

import (
	"context"
	"errors"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/resource"
)

// Verify returns the user of a token and the audiences for which the token is valid; no audiences: the API server's own. A nil user without
// an error means that no authenticator knows the token; an error with a method InvalidAudiences means that an authenticator returned
// audiences that were not requested.
type Verify func(ctx context.Context, token string, audiences []string) (user.Info, []string, error)

// TokenReview describes reviews of tokens. Without verify every token is unknown.
func TokenReview(verify Verify) *resource.Descriptor {
	return kind.Describe[*authenticationv1.TokenReview](resource.Descriptor{
		Group:    "authentication.k8s.io",
		Resource: "tokenreviews",
		Kind:     "TokenReview",
		Verbs:    []string{"create"},
		Create: func(ctx context.Context, _ resource.Backend, obj resource.Object, _ *metav1.CreateOptions) (resource.Object, error) {
			r, ok := obj.(*authenticationv1.TokenReview)
			if !ok {
				return nil, apierrors.NewBadRequest(fmt.Sprintf("not a TokenReview: %T", obj))
			}
			if r.Spec.Token == "" {
				return nil, apierrors.NewBadRequest("token is required for TokenReview in authentication")
			}
			r.Status = authenticationv1.TokenReviewStatus{}
			if verify == nil {
				return r, nil
			}
			u, audiences, err := verify(ctx, r.Spec.Token, r.Spec.Audiences)
			if invalid := (interface{ InvalidAudiences() }(nil)); errors.As(err, &invalid) {
				return nil, apierrors.NewInternalError(errors.New("error validating audiences")) // upstream's words
			}
			if err != nil {
				r.Status.Error = err.Error()
			}
			if u != nil && err == nil {
				r.Status.Authenticated, r.Status.User, r.Status.Audiences = true, info(u), audiences
			}
			return r, nil
		},
	})
}
