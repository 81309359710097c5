// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package review holds the kinds that ask the server about itself and store nothing: who am I, whose token is this, may
// this user do that. Each is a descriptor whose Create answers; the server adds them to its kinds, since they ask its own
// authenticator and authorizer.
package review

import (
	"context"
	"errors"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/resource"
)

// Options are what reviews ask.
type Options struct {
	Authorizer authorize.Authorizer
	// Verify checks a token; nil: none is good.
	Verify func(ctx context.Context, token string, audiences []string) (user.Info, []string, error)
	Now    func() time.Time
}

// Kinds are all reviews.
func Kinds(o Options) []*resource.Descriptor {
	return []*resource.Descriptor{
		kind("authentication.k8s.io", "tokenreviews", "TokenReview", false, func() resource.Object { return &authenticationv1.TokenReview{} }, o.token),
		kind("authentication.k8s.io", "selfsubjectreviews", "SelfSubjectReview", false, func() resource.Object { return &authenticationv1.SelfSubjectReview{} }, o.self),
		kind("authorization.k8s.io", "subjectaccessreviews", "SubjectAccessReview", false, func() resource.Object { return &authorizationv1.SubjectAccessReview{} }, o.subject),
		kind("authorization.k8s.io", "selfsubjectaccessreviews", "SelfSubjectAccessReview", false, func() resource.Object { return &authorizationv1.SelfSubjectAccessReview{} }, o.selfAccess),
		kind("authorization.k8s.io", "localsubjectaccessreviews", "LocalSubjectAccessReview", true, func() resource.Object { return &authorizationv1.LocalSubjectAccessReview{} }, o.local),
		kind("authorization.k8s.io", "selfsubjectrulesreviews", "SelfSubjectRulesReview", false, func() resource.Object { return &authorizationv1.SelfSubjectRulesReview{} }, o.rules),
	}
}

func kind(group, plural, name string, namespaced bool, empty func() resource.Object, answer func(ctx context.Context, obj resource.Object) (resource.Object, error)) *resource.Descriptor {
	singular := plural[:len(plural)-1]
	return &resource.Descriptor{
		Group: group, Resource: plural, Singular: singular, Kind: name, ListKind: name + "List", Namespaced: namespaced,
		Versions: []resource.Version{{Name: "v1", New: empty, Protobuf: true, Strategic: true}}, Storage: "v1",
		Prefix: plural, Verbs: []string{"create"}, Internal: true,
		Create: func(ctx context.Context, _ resource.Backend, obj resource.Object, _ *metav1.CreateOptions) (resource.Object, error) {
			return answer(ctx, obj)
		},
	}
}

func (o Options) token(ctx context.Context, obj resource.Object) (resource.Object, error) {
	r := obj.(*authenticationv1.TokenReview)
	if r.Spec.Token == "" {
		return nil, apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	r.Status = authenticationv1.TokenReviewStatus{}
	if o.Verify == nil {
		return r, nil
	}
	who, audiences, err := o.Verify(ctx, r.Spec.Token, r.Spec.Audiences)
	if err != nil {
		r.Status.Error = "invalid bearer token"
		return r, nil
	}
	r.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: info(who), Audiences: audiences}
	return r, nil
}

func info(who user.Info) authenticationv1.UserInfo {
	u := authenticationv1.UserInfo{Username: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups()}
	for k, v := range who.GetExtra() {
		if u.Extra == nil {
			u.Extra = map[string]authenticationv1.ExtraValue{}
		}
		u.Extra[k] = v
	}
	return u
}

func asker(ctx context.Context) (user.Info, error) {
	who, ok := request.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("no user present on request")
	}
	return who, nil
}

func (o Options) self(ctx context.Context, obj resource.Object) (resource.Object, error) {
	who, err := asker(ctx)
	if err != nil {
		return nil, err
	}
	r := obj.(*authenticationv1.SelfSubjectReview)
	r.ManagedFields = nil
	r.CreationTimestamp = metav1.NewTime(o.Now()).Rfc3339Copy()
	r.Status = authenticationv1.SelfSubjectReviewStatus{UserInfo: info(who)}
	return r, nil
}

// refused is the 422 of a review's spec; upstream names no kind in it.
func refused(errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Group: "authorization.k8s.io"}, "", errs)
}

func checkAttributes(res *authorizationv1.ResourceAttributes, non *authorizationv1.NonResourceAttributes) field.ErrorList {
	if (res == nil) != (non == nil) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("spec"), non, "exactly one of nonResourceAttributes or resourceAttributes must be specified")}
}

func checkSpec(s *authorizationv1.SubjectAccessReviewSpec) field.ErrorList {
	errs := checkAttributes(s.ResourceAttributes, s.NonResourceAttributes)
	if s.User == "" && len(s.Groups) == 0 {
		errs = append(errs, field.Invalid(field.NewPath("spec", "user"), s.User, "at least one of user or group must be specified"))
	}
	return errs
}

func (o Options) ask(ctx context.Context, who user.Info, res *authorizationv1.ResourceAttributes, non *authorizationv1.NonResourceAttributes) authorizationv1.SubjectAccessReviewStatus {
	a := &authorize.Attributes{User: who}
	if res != nil {
		a.ResourceRequest = true
		a.Verb, a.Group, a.Version, a.Resource, a.Subresource = res.Verb, res.Group, res.Version, res.Resource, res.Subresource
		a.Namespace, a.Name = res.Namespace, res.Name
	} else {
		a.Verb, a.Path = non.Verb, non.Path
	}
	d, reason, err := o.Authorizer.Authorize(ctx, a)
	st := authorizationv1.SubjectAccessReviewStatus{Allowed: d == authorize.Allow, Denied: d == authorize.Deny, Reason: reason}
	if err != nil {
		st.EvaluationError = err.Error()
	}
	return st
}

func subject(s *authorizationv1.SubjectAccessReviewSpec) user.Info {
	who := &user.DefaultInfo{Name: s.User, UID: s.UID, Groups: s.Groups}
	for k, v := range s.Extra {
		if who.Extra == nil {
			who.Extra = map[string][]string{}
		}
		who.Extra[k] = v
	}
	return who
}

func (o Options) subject(ctx context.Context, obj resource.Object) (resource.Object, error) {
	r := obj.(*authorizationv1.SubjectAccessReview)
	if err := refused(checkSpec(&r.Spec)); err != nil {
		return nil, err
	}
	r.Status = o.ask(ctx, subject(&r.Spec), r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
	return r, nil
}

func (o Options) selfAccess(ctx context.Context, obj resource.Object) (resource.Object, error) {
	r := obj.(*authorizationv1.SelfSubjectAccessReview)
	if err := refused(checkAttributes(r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)); err != nil {
		return nil, err
	}
	who, err := asker(ctx)
	if err != nil {
		return nil, err
	}
	r.Status = o.ask(ctx, who, r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
	return r, nil
}

func (o Options) local(ctx context.Context, obj resource.Object) (resource.Object, error) {
	r := obj.(*authorizationv1.LocalSubjectAccessReview)
	errs := checkSpec(&r.Spec)
	if r.Spec.NonResourceAttributes != nil {
		errs = append(errs, field.Invalid(field.NewPath("spec", "nonResourceAttributes"), r.Spec.NonResourceAttributes, "disallowed on this kind of request"))
	}
	if err := refused(errs); err != nil {
		return nil, err
	}
	if r.Spec.ResourceAttributes.Namespace == "" || r.Spec.ResourceAttributes.Namespace != r.Namespace {
		return nil, apierrors.NewBadRequest("spec.resourceAttributes.namespace must match namespace: " + r.Namespace)
	}
	r.Status = o.ask(ctx, subject(&r.Spec), r.Spec.ResourceAttributes, nil)
	return r, nil
}

// rules lists what the asker may do. Only administrators' rules are known without role-based authorization.
func (o Options) rules(ctx context.Context, obj resource.Object) (resource.Object, error) {
	who, err := asker(ctx)
	if err != nil {
		return nil, err
	}
	r := obj.(*authorizationv1.SelfSubjectRulesReview)
	if r.Spec.Namespace == "" {
		return nil, apierrors.NewBadRequest("no namespace on request")
	}
	all := []string{"*"}
	r.Status = authorizationv1.SubjectRulesReviewStatus{ResourceRules: []authorizationv1.ResourceRule{}, NonResourceRules: []authorizationv1.NonResourceRule{}}
	d, _, err := o.Authorizer.Authorize(ctx, &authorize.Attributes{User: who, Verb: "*", Group: "*", Version: "*", Resource: "*", ResourceRequest: true})
	if err != nil && !errors.Is(err, context.Canceled) {
		r.Status.EvaluationError = err.Error()
	}
	if d == authorize.Allow {
		r.Status.ResourceRules = append(r.Status.ResourceRules, authorizationv1.ResourceRule{Verbs: all, APIGroups: all, Resources: all})
		r.Status.NonResourceRules = append(r.Status.NonResourceRules, authorizationv1.NonResourceRule{Verbs: all, NonResourceURLs: all})
	} else {
		r.Status.Incomplete = true
	}
	return r, nil
}
