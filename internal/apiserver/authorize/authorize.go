// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package authorize decides whether a user may do what a request asks for.
//
// An [Authorizer] allows, denies, or has no opinion. A [Chain] calls authorizers in order, and denies a request that
// none of them allows. Every server has [Administrators]: system:masters may do everything. The others are configured
// as for kube-apiserver (package modes), in the administrator's order: nodes (package node), roles (rbac), policies
// from a file (abac), webhooks (review). Servers without roles have [Open], which lets all users read health and
// version.
package authorize

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/internal/selectors"
)

// Decision is the result of an authorizer.
type Decision int

// The decisions. Unless a request is allowed in the end, it is forbidden.
const (
	NoOpinion Decision = iota
	Deny
	Allow
)

// Attributes describe a request for authorizers.
type Attributes struct {
	User                                        user.Info
	Verb, Group, Version, Resource, Subresource string
	Namespace, Name                             string
	ResourceRequest                             bool
	Path                                        string

	// The requirements of the selectors of a list, watch or deletecollection, and the error of parsing them. A selector
	// only narrows a request: an authorizer may ignore it or a part of it.
	Fields                   fields.Requirements
	Labels                   labels.Requirements
	FieldsError, LabelsError error
}

// Of returns the attributes of a request.
func Of(info *request.RequestInfo, u user.Info) Attributes {
	a := Attributes{
		User: u, Verb: info.Verb, Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource, Subresource: info.Subresource,
		Namespace: info.Namespace, Name: info.Name, ResourceRequest: info.IsResourceRequest, Path: info.Path,
	}
	a.Select(info.FieldSelector, info.LabelSelector)
	return a
}

// Select parses the selectors; empty ones require nothing.
func (a *Attributes) Select(fieldSelector, labelSelector string) {
	if fieldSelector != "" {
		if s, err := selectors.ParseFields(fieldSelector); err != nil {
			a.FieldsError = err
		} else {
			a.Fields = s.Requirements()
		}
	}
	if labelSelector != "" {
		if s, err := selectors.ParseLabels(labelSelector); err != nil {
			a.LabelsError = err
		} else {
			a.Labels, _ = s.Requirements()
		}
	}
}

// Authorizer decides about requests. The user sees the reason if no authorizer allows the request.
type Authorizer interface {
	Authorize(ctx context.Context, a *Attributes) (Decision, string, error)
}

// Func adapts a function to an Authorizer.
type Func func(ctx context.Context, a *Attributes) (Decision, string, error)

// Authorize calls f.
func (f Func) Authorize(ctx context.Context, a *Attributes) (Decision, string, error) {
	return f(ctx, a)
}

// Named is an authorizer whose name precedes its reasons for not allowing a request.
type Named interface {
	Authorizer
	// Name is the type in an AuthorizationConfiguration: "rbac", "node".
	Name() string
}

// Chain calls authorizers in order.
type Chain []Authorizer

// Authorize returns the first decision to allow or deny. Without one, it returns the reasons and errors of all
// authorizers.
func (c Chain) Authorize(ctx context.Context, a *Attributes) (Decision, string, error) {
	var reasons []string
	var errs []error
	for _, z := range c {
		d, reason, err := z.Authorize(ctx, a)
		if d != NoOpinion {
			return d, reason, err
		}
		if err != nil {
			errs = append(errs, err)
		}
		if reason != "" {
			if n, ok := z.(Named); ok {
				reason = n.Name() + ": " + reason
			}
			reasons = append(reasons, reason)
		}
	}
	if len(errs) > 0 {
		return NoOpinion, strings.Join(reasons, "\n"), utilerrors.NewAggregate(errs)
	}
	return NoOpinion, strings.Join(reasons, "\n"), nil
}

// Masters is the group of administrators.
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

// Open lets all users read health and version, as the role system:public-info-viewer does with RBAC.
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

var markup = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// EscapeMarkup escapes the characters that begin tags and entities in what clients sent, so that no browser takes a plain-text response
// for HTML. It leaves quotes, as in kube-apiserver's responses.
func EscapeMarkup(text string) string { return markup.Replace(text) }

// Forbidden returns the 403 of a denied request.
func Forbidden(a *Attributes, reason string) error {
	msg := EscapeMarkup(describe(a))
	if reason != "" {
		msg += ": " + reason
	}
	if !a.ResourceRequest {
		e := apierrors.NewForbidden(schema.GroupResource{}, a.Name, errors.New(msg))
		e.ErrStatus.Message = "forbidden: " + msg
		e.ErrStatus.Details = &metav1.StatusDetails{}
		return e
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: a.Group, Resource: a.Resource}, a.Name, errors.New(msg))
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
