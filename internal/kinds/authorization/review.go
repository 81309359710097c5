// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package authorization describes the kinds of the group authorization.k8s.io: reviews that the server answers and does not store.
package authorization

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/mortise-dev/mortise/internal/selectors"
	"github.com/mortise-dev/mortise/resource"
)

const group = "authorization.k8s.io"

// Authorize decides whether a user is authorized for a request.
type Authorize func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error)

// Rules lists a user's rules in a namespace; incomplete if an authorizer cannot list its rules.
type Rules func(ctx context.Context, u user.Info, namespace string) (resources []authorizationv1.ResourceRule,
	paths []authorizationv1.NonResourceRule, incomplete bool, err error)

// Administrators allows the group system:masters everything, and has no opinion about others.
func Administrators(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetUser() != nil && slices.Contains(a.GetUser().GetGroups(), user.SystemPrivilegedGroup) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// AdministratorRules returns the rules behind [Administrators].
func AdministratorRules(_ context.Context, u user.Info, _ string) ([]authorizationv1.ResourceRule, []authorizationv1.NonResourceRule, bool,
	error) {
	if !slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
		return nil, nil, false, nil
	}
	all := []string{"*"}
	return []authorizationv1.ResourceRule{{Verbs: all, APIGroups: all, Resources: all}},
		[]authorizationv1.NonResourceRule{{Verbs: all, NonResourceURLs: all}}, false, nil
}

// answer calls the authorizer, and returns its decision as a review's status.
func (f Authorize) answer(ctx context.Context, a authorizer.AttributesRecord) authorizationv1.SubjectAccessReviewStatus {
	decision, reason, err := f(ctx, a)
	var wrong []string
	if err != nil {
		wrong = append(wrong, err.Error())
	}
	ignored := func(name string, used int, err error) {
		if err == nil {
			return
		}
		how := "ignored"
		if used > 0 {
			how = "partially ignored"
		}
		wrong = append(wrong, fmt.Sprintf("spec.resourceAttributes.%s %s due to parse error", name, how))
	}
	ignored("fieldSelector", len(a.FieldSelectorRequirements), a.FieldSelectorParsingErr)
	ignored("labelSelector", len(a.LabelSelectorRequirements), a.LabelSelectorParsingErr)
	return authorizationv1.SubjectAccessReviewStatus{
		Allowed:         decision == authorizer.DecisionAllow,
		Denied:          decision == authorizer.DecisionDeny,
		Reason:          reason,
		EvaluationError: strings.Join(wrong, "; "),
	}
}

// question returns the descriptor of a review kind.
func question(plural, name string, namespaced bool) resource.Descriptor {
	return resource.Descriptor{Group: group, Resource: plural, Kind: name, Namespaced: namespaced, Verbs: []string{"create"}}
}

// refuse returns the error for an invalid review. Upstream's error names no kind.
func refuse(errs field.ErrorList) error {
	return apierrors.NewInvalid(schema.GroupKind{Group: group}, "", errs)
}

// of converts the attributes in a review to those of authorizers.
func of(u user.Info, r *authorizationv1.ResourceAttributes, n *authorizationv1.NonResourceAttributes) authorizer.AttributesRecord {
	if r == nil {
		if n == nil {
			return authorizer.AttributesRecord{User: u}
		}
		return authorizer.AttributesRecord{User: u, Path: n.Path, Verb: n.Verb}
	}
	a := authorizer.AttributesRecord{
		User: u, Verb: r.Verb, Namespace: r.Namespace, APIGroup: r.Group, APIVersion: r.Version, Resource: r.Resource,
		Subresource: r.Subresource, Name: r.Name, ResourceRequest: true,
	}
	if a.APIVersion == "" {
		a.APIVersion = "*"
	}
	if s := r.LabelSelector; s != nil {
		a.LabelSelectorRequirements, a.LabelSelectorParsingErr = labelRequirements(s)
	}
	if s := r.FieldSelector; s != nil {
		a.FieldSelectorRequirements, a.FieldSelectorParsingErr = fieldRequirements(s)
	}
	return a
}

func labelRequirements(s *authorizationv1.LabelSelectorAttributes) (labels.Requirements, error) {
	if s.RawSelector != "" {
		selector, err := selectors.ParseLabels(s.RawSelector)
		if err != nil {
			return nil, err
		}
		out, _ := selector.Requirements()
		return out, nil
	}
	n := len(s.Requirements)
	for _, e := range s.Requirements {
		n += len(e.Values)
	}
	if err := selectors.CheckCount("label", n); err != nil {
		return nil, err
	}
	ops := map[metav1.LabelSelectorOperator]selection.Operator{
		metav1.LabelSelectorOpIn: selection.In, metav1.LabelSelectorOpNotIn: selection.NotIn,
		metav1.LabelSelectorOpExists: selection.Exists, metav1.LabelSelectorOpDoesNotExist: selection.DoesNotExist,
	}
	var out labels.Requirements
	var errs []error
	for _, e := range s.Requirements {
		op, ok := ops[e.Operator]
		if !ok {
			errs = append(errs, fmt.Errorf("%q is not a valid label selector operator", e.Operator))
			continue
		}
		r, err := labels.NewRequirement(e.Key, op, e.Values)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, *r)
	}
	return out, errors.Join(errs...)
}

func fieldRequirements(s *authorizationv1.FieldSelectorAttributes) (fields.Requirements, error) {
	if s.RawSelector != "" {
		selector, err := selectors.ParseFields(s.RawSelector)
		if err != nil {
			return nil, err
		}
		return selector.Requirements(), nil
	}
	if err := selectors.CheckCount("field", len(s.Requirements)); err != nil {
		return nil, err
	}
	var out fields.Requirements
	var errs []error
	for _, e := range s.Requirements {
		op := selection.Equals
		switch {
		case len(e.Values) > 1:
			errs = append(errs, errors.New("fieldSelectors do not yet support multiple values"))
			continue
		case e.Operator == metav1.FieldSelectorOpIn && len(e.Values) != 1:
			errs = append(errs, errors.New("fieldSelectors in must have one value"))
			continue
		case e.Operator == metav1.FieldSelectorOpNotIn && len(e.Values) != 1:
			errs = append(errs, errors.New("fieldSelectors not in must have one value"))
			continue
		case e.Operator == metav1.FieldSelectorOpIn:
		case e.Operator == metav1.FieldSelectorOpNotIn:
			op = selection.NotEquals
		case e.Operator == metav1.FieldSelectorOpExists || e.Operator == metav1.FieldSelectorOpDoesNotExist:
			errs = append(errs, fmt.Errorf("fieldSelectors do not yet support %v", e.Operator))
			continue
		default:
			errs = append(errs, fmt.Errorf("%q is not a valid field selector operator", e.Operator))
			continue
		}
		out = append(out, fields.Requirement{Field: e.Key, Operator: op, Value: e.Values[0]})
	}
	return out, errors.Join(errs...)
}

// subject returns the user in a review.
func subject(s *authorizationv1.SubjectAccessReviewSpec) user.Info {
	u := &user.DefaultInfo{Name: s.User, UID: s.UID, Groups: s.Groups}
	if s.Extra != nil {
		u.Extra = map[string][]string{}
		for key, values := range s.Extra {
			u.Extra[key] = values
		}
	}
	return u
}
