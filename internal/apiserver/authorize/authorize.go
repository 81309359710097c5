// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package authorize decides whether a user may do what a request asks for.
//
// An [Authorizer] allows, denies, or has no opinion; [Chain] asks in order, and what nobody allows is forbidden.
// [Administrators] is the one that every server has: system:masters may all. Roles (package rbac) follow it; servers
// without them have [Open], by which everybody may ask for health and version.
package authorize

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Decision is an authorizer's answer.
type Decision int

// The answers. What ends without Allow is forbidden.
const (
	NoOpinion Decision = iota
	Deny
	Allow
)

// Attributes are what an authorizer may know of a request.
type Attributes struct {
	User                                        user.Info
	Verb, Group, Version, Resource, Subresource string
	Namespace, Name                             string
	ResourceRequest                             bool
	Path                                        string
	LabelSelector, FieldSelector                string
}

// Authorizer decides. The reason is shown to the user when nobody allows.
type Authorizer interface {
	Authorize(ctx context.Context, a *Attributes) (Decision, string, error)
}

// Func is a function as an Authorizer.
type Func func(ctx context.Context, a *Attributes) (Decision, string, error)

// Authorize calls f.
func (f Func) Authorize(ctx context.Context, a *Attributes) (Decision, string, error) {
	return f(ctx, a)
}

// Named is an authorizer whose reasons for not allowing are shown behind its name.
type Named interface {
	Authorizer
	// Name is as in an AuthorizationConfiguration: "rbac", "node".
	Name() string
}

// Chain asks in order.
type Chain []Authorizer

// Authorize returns the first opinion; without any, the reasons and errors of all.
func (c Chain) Authorize(ctx context.Context, a *Attributes) (Decision, string, error) {
	var reasons []string
	var errs []string
	for _, z := range c {
		d, reason, err := z.Authorize(ctx, a)
		if err != nil {
			errs = append(errs, err.Error())
		}
		if n, ok := z.(Named); ok && reason != "" && d == NoOpinion {
			reason = n.Name() + ": " + reason
		}
		if reason != "" {
			reasons = append(reasons, reason)
		}
		if d != NoOpinion {
			return d, reason, err
		}
	}
	if len(errs) > 0 {
		return NoOpinion, strings.Join(reasons, "\n"), fmt.Errorf("%s", strings.Join(errs, ", "))
	}
	return NoOpinion, strings.Join(reasons, "\n"), nil
}

// Masters is the group that may all.
const Masters = user.SystemPrivilegedGroup

// Administrators allows everything to the group system:masters.
type Administrators struct{}

// Authorize allows or has no opinion.
func (Administrators) Authorize(_ context.Context, a *Attributes) (Decision, string, error) {
	if a.User != nil && slices.Contains(a.User.GetGroups(), Masters) {
		return Allow, "", nil
	}
	return NoOpinion, "", nil
}

// Open allows everybody to ask for health and version, as the role system:public-info-viewer does where there are roles.
type Open struct{}

// Authorize allows or has no opinion.
func (Open) Authorize(_ context.Context, a *Attributes) (Decision, string, error) {
	if a.ResourceRequest || a.Verb != "get" {
		return NoOpinion, "", nil
	}
	switch a.Path {
	case "/healthz", "/livez", "/readyz", "/version", "/version/":
		return Allow, "", nil
	}
	return NoOpinion, "", nil
}

// markup keeps what a client said from being read as HTML.
var markup = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// Forbidden is the 403 that says what was not allowed.
func Forbidden(a *Attributes, reason string) error {
	msg := markup.Replace(describe(a))
	if reason != "" {
		msg += ": " + reason
	}
	if !a.ResourceRequest {
		e := apierrors.NewForbidden(schema.GroupResource{}, a.Name, fmt.Errorf("%s", msg))
		e.ErrStatus.Message = "forbidden: " + msg
		e.ErrStatus.Details = &metav1.StatusDetails{}
		return e
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: a.Group, Resource: a.Resource}, a.Name, fmt.Errorf("%s", msg))
}

func describe(a *Attributes) string {
	name := ""
	if a.User != nil {
		name = a.User.GetName()
	}
	if !a.ResourceRequest {
		return fmt.Sprintf("User %q cannot %s path %q", name, a.Verb, a.Path)
	}
	r := a.Resource
	if a.Subresource != "" {
		r += "/" + a.Subresource
	}
	if a.Namespace != "" {
		return fmt.Sprintf("User %q cannot %s resource %q in API group %q in the namespace %q", name, a.Verb, r, a.Group, a.Namespace)
	}
	return fmt.Sprintf("User %q cannot %s resource %q in API group %q at the cluster scope", name, a.Verb, r, a.Group)
}
