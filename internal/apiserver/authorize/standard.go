// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authorize

import (
	"context"

	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Standard is z in the form that libraries of the field ask in.
func Standard(z Authorizer) func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	return func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		d, reason, err := z.Authorize(ctx, &Attributes{
			User: a.GetUser(), Verb: a.GetVerb(), Group: a.GetAPIGroup(), Version: a.GetAPIVersion(), Resource: a.GetResource(),
			Subresource: a.GetSubresource(), Namespace: a.GetNamespace(), Name: a.GetName(), ResourceRequest: a.IsResourceRequest(), Path: a.GetPath(),
		})
		switch d {
		case Allow:
			return authorizer.DecisionAllow, reason, err
		case Deny:
			return authorizer.DecisionDeny, reason, err
		}
		return authorizer.DecisionNoOpinion, reason, err
	}
}
