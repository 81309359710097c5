// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authorize

import (
	"context"

	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Standard adapts z to the authorizer function of the Kubernetes libraries.
func Standard(z Authorizer) func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	return func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		at := &Attributes{
			User: a.GetUser(), Verb: a.GetVerb(), Group: a.GetAPIGroup(), Version: a.GetAPIVersion(), Resource: a.GetResource(),
			Subresource: a.GetSubresource(), Namespace: a.GetNamespace(), Name: a.GetName(), ResourceRequest: a.IsResourceRequest(),
			Path: a.GetPath(),
		}
		at.Fields, at.FieldsError = a.GetFieldSelector()
		at.Labels, at.LabelsError = a.GetLabelSelector()
		d, reason, err := z.Authorize(ctx, at)
		switch d {
		case Allow:
			return authorizer.DecisionAllow, reason, err
		case Deny:
			return authorizer.DecisionDeny, reason, err
		}
		return authorizer.DecisionNoOpinion, reason, err
	}
}

// Standard converts the attributes to those of the Kubernetes libraries.
func (a *Attributes) Standard() authorizer.AttributesRecord {
	return authorizer.AttributesRecord{
		User: a.User, Verb: a.Verb, Namespace: a.Namespace, APIGroup: a.Group, APIVersion: a.Version, Resource: a.Resource,
		Subresource: a.Subresource, Name: a.Name, ResourceRequest: a.ResourceRequest, Path: a.Path,
		FieldSelectorRequirements: a.Fields, FieldSelectorParsingErr: a.FieldsError,
		LabelSelectorRequirements: a.Labels, LabelSelectorParsingErr: a.LabelsError,
	}
}

// Library adapts an authorizer function of the Kubernetes libraries to an Authorizer.
func Library(z func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error)) Authorizer {
	return Func(func(ctx context.Context, a *Attributes) (Decision, string, error) {
		d, reason, err := z(ctx, a.Standard())
		switch d {
		case authorizer.DecisionAllow:
			return Allow, reason, err
		case authorizer.DecisionDeny:
			return Deny, reason, err
		}
		return NoOpinion, reason, err
	})
}
