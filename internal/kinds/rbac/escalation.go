// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rbac

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/component-helpers/auth/rbac/validation"

	"github.com/mortise-dev/mortise/resource"
)

// Authority knows the users' rights: no user may grant rights that they do not have, except with the verbs escalate (of
// roles) and bind (of bindings). The zero value restricts no user.
type Authority struct {
	// Authorize decides as the request chain does.
	Authorize func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error)
	// RulesFor returns a user's rules in a namespace; with an error, those that it could find.
	RulesFor func(u user.Info, namespace string) ([]rbacv1.PolicyRule, error)
	// RulesOf returns the rules of the role that a binding in namespace refers to.
	RulesOf func(ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error)
}

// unbound reports whether a request has no restrictions: those of administrators, and of the server itself, which have no user.
func (a Authority) unbound(ctx context.Context) (user.Info, bool) {
	u, ok := request.UserFrom(ctx)
	return u, !ok || a.RulesFor == nil || slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}

func (a Authority) may(ctx context.Context, u user.Info, verb, plural, namespace, name string) bool {
	d, _, err := a.Authorize(ctx, authorizer.AttributesRecord{
		User: u, Verb: verb, APIGroup: rbacv1.GroupName, APIVersion: "*", Resource: plural, Namespace: namespace, Name: name,
		ResourceRequest: true,
	})
	return d == authorizer.DecisionAllow && err == nil
}

var everything = []rbacv1.PolicyRule{
	{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
	{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}},
}

// role refuses a role (plural: roles or clusterroles) with rules that the user does not have.
func (a Authority) role(ctx context.Context, plural string, obj, old resource.Object, rules []rbacv1.PolicyRule, aggregates bool) error {
	u, ok := a.unbound(ctx)
	if ok {
		return nil
	}
	name := "" // a create is authorized without a name
	if info, ok := request.RequestInfoFrom(ctx); ok {
		name = info.Name
	}
	if a.may(ctx, u, "escalate", plural, obj.GetNamespace(), name) || onlyCollected(obj, old) {
		return nil
	}
	gr := schema.GroupResource{Group: rbacv1.GroupName, Resource: plural}
	if err := a.covers(u, obj.GetNamespace(), rules); err != nil {
		return apierrors.NewForbidden(gr, obj.GetName(), err)
	}
	if aggregates && a.covers(u, obj.GetNamespace(), everything) != nil {
		return apierrors.NewForbidden(gr, obj.GetName(), errors.New("must have cluster-admin privileges to use the aggregationRule"))
	}
	return nil
}

// binding refuses a binding to a role with rules that the user does not have.
func (a Authority) binding(ctx context.Context, plural string, obj, old resource.Object, ref rbacv1.RoleRef) error {
	u, ok := a.unbound(ctx)
	if ok || onlyCollected(obj, old) {
		return nil
	}
	switch ref.Kind {
	case "Role", "ClusterRole":
		if a.may(ctx, u, "bind", strings.ToLower(ref.Kind)+"s", obj.GetNamespace(), ref.Name) {
			return nil
		}
	}
	rules, err := a.RulesOf(ref, obj.GetNamespace())
	if apierrors.IsNotFound(err) { // upstream's error names the resource of the request
		return apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: plural}, ref.Name)
	}
	if err != nil {
		return err
	}
	if err := a.covers(u, obj.GetNamespace(), rules); err != nil {
		return apierrors.NewForbidden(schema.GroupResource{Group: rbacv1.GroupName, Resource: plural}, obj.GetName(), err)
	}
	return nil
}

// covers returns an error that lists the rules that the user does not have in a namespace.
func (a Authority) covers(u user.Info, namespace string, rules []rbacv1.PolicyRule) error {
	has, err := a.RulesFor(u, namespace)
	ok, missing := validation.Covers(has, rules)
	if ok {
		return nil
	}
	msg := fmt.Sprintf("user %q (groups=%q) is attempting to grant RBAC permissions not currently held:\n%s", u.GetName(), u.GetGroups(),
		strings.Join(describe(missing), "\n"))
	if err != nil {
		msg += fmt.Sprintf("; resolution errors: %v", []error{err})
	}
	return errors.New(msg)
}

// describe lists the missing rules, a line each, sorted; rules that differ by verb alone share a line.
func describe(missing []rbacv1.PolicyRule) []string {
	type one struct{ group, resource, name string }
	merged := map[one]*rbacv1.PolicyRule{}
	var rules []*rbacv1.PolicyRule
	for i := range missing {
		r := &missing[i]
		if len(r.NonResourceURLs) > 0 || len(r.APIGroups) != 1 || len(r.Resources) != 1 || len(r.ResourceNames) > 1 {
			rules = append(rules, r)
			continue
		}
		key := one{group: r.APIGroups[0], resource: r.Resources[0]}
		if len(r.ResourceNames) == 1 {
			key.name = "=" + r.ResourceNames[0] // an empty name differs from none
		}
		if m := merged[key]; m != nil {
			m.Verbs = append(m.Verbs, r.Verbs...)
			continue
		}
		merged[key] = r.DeepCopy()
		rules = append(rules, merged[key])
	}
	var lines []string
	for _, r := range rules {
		var parts []string
		for _, p := range []struct {
			name   string
			values []string
		}{
			{"APIGroups", r.APIGroups}, {"Resources", r.Resources}, {"NonResourceURLs", r.NonResourceURLs},
			{"ResourceNames", r.ResourceNames}, {"Verbs", r.Verbs},
		} {
			if len(p.values) > 0 {
				parts = append(parts, fmt.Sprintf("%s:%q", p.name, p.values))
			}
		}
		lines = append(lines, "{"+strings.Join(parts, ", ")+"}")
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// onlyCollected reports whether an update changes only what the garbage collector changes.
func onlyCollected(obj, old resource.Object) bool {
	if old == nil {
		return false
	}
	c := obj.DeepCopyObject().(resource.Object)
	c.SetOwnerReferences(old.GetOwnerReferences())
	c.SetFinalizers(old.GetFinalizers())
	c.SetSelfLink(old.GetSelfLink())
	c.SetManagedFields(old.GetManagedFields())
	return equality.Semantic.DeepEqual(c, old)
}
