// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package matching decides whether a rule of an object (a webhook, a policy) applies to a request, and converts the
// request's objects to the version that the rule names.
//
// A [Request] is one request as all rules see it: values that several rules need are computed once. A [Criteria] holds
// one rule's constraints, parsed once; [Criteria.Match] returns the [Form] in which the request matches.
//
// # Concurrency
//
// A Request belongs to one goroutine. Many goroutines may read the forms that it has made.
package matching

import (
	"cmp"
	"context"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// Form is the form in which a rule matches a request: the resource as the rule names it, and its kind.
type Form struct {
	Resource schema.GroupVersionResource
	Kind     schema.GroupVersionKind
}

// Criteria are the parsed constraints of one rule.
type Criteria struct {
	Rules []admissionregistrationv1.RuleWithOperations
	// Names limits each rule of Rules to objects of some names. Nil, and nil for one rule, means all names.
	Names [][]string
	// Excluded are rules that take precedence over Rules.
	Excluded      []admissionregistrationv1.RuleWithOperations
	ExcludedNames [][]string
	// Equivalent lets rules match that name the same objects in another version or group.
	Equivalent bool
	// Anything makes an empty list of rules match every resource.
	Anything bool

	namespaces, objects  labels.Selector
	namespaceErr, objErr error
}

// Select sets the selectors. A nil selector matches nothing.
func (c *Criteria) Select(namespaces, objects *metav1.LabelSelector) {
	c.namespaces, c.namespaceErr = metav1.LabelSelectorAsSelector(namespaces)
	c.objects, c.objErr = metav1.LabelSelectorAsSelector(objects)
}

var namespaceResource = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}

// Match returns the form in which c matches the request, or nil if it does not match. The error is an API status. It
// evaluates rules before selectors, which may need the namespace; a rule that does not match never fails a request.
func (c *Criteria) Match(ctx context.Context, q *Request) (*Form, error) {
	form := c.matchRules(q)
	if form == nil {
		return nil, nil
	}
	ok, nsErr := c.matchNamespace(ctx, q)
	if !ok && nsErr == nil {
		return nil, nil
	}
	ok, objErr := c.matchObjects(q)
	if !ok && objErr == nil {
		return nil, nil
	}
	if err := cmp.Or(nsErr, objErr); err != nil {
		return nil, err
	}
	return form, nil
}

func (c *Criteria) matchRules(q *Request) *Form {
	if len(c.Excluded) > 0 && c.included(q, c.Excluded, c.ExcludedNames) != nil {
		return nil
	}
	if c.Anything && len(c.Rules) == 0 {
		return q.Form()
	}
	return c.included(q, c.Rules, c.Names)
}

func (c *Criteria) included(q *Request, rules []admissionregistrationv1.RuleWithOperations, names [][]string) *Form {
	named := func(i int) bool {
		return i >= len(names) || len(names[i]) == 0 || slices.Contains(names[i], q.Name)
	}
	own := q.Resource()
	for i := range rules {
		if matchRule(&rules[i], q, own) && named(i) {
			return q.Form()
		}
	}
	if !c.Equivalent {
		return nil
	}
	equivalents := q.equivalents()
	for i := range rules {
		if !named(i) {
			continue
		}
		for _, e := range equivalents {
			if matchRule(&rules[i], q, e.Resource) {
				return e
			}
		}
	}
	return nil
}

func matchRule(r *admissionregistrationv1.RuleWithOperations, q *Request, gvr schema.GroupVersionResource) bool {
	return matchOperation(r.Operations, q.Operation) && either(r.APIGroups, gvr.Group) && either(r.APIVersions, gvr.Version) &&
		matchResource(r.Resources, gvr.Resource, q.Subresource) && matchScope(r.Scope, q.Namespace, gvr)
}

func matchScope(scope *admissionregistrationv1.ScopeType, namespace string, gvr schema.GroupVersionResource) bool {
	if scope == nil {
		return true
	}
	switch *scope {
	case admissionregistrationv1.AllScopes:
		return true
	case admissionregistrationv1.NamespacedScope:
		return gvr != namespaceResource && namespace != ""
	case admissionregistrationv1.ClusterScope:
		return gvr == namespaceResource || namespace == ""
	}
	return false
}

func matchOperation(ops []admissionregistrationv1.OperationType, op admit.Operation) bool {
	for _, o := range ops {
		if o == admissionregistrationv1.OperationAll || string(o) == string(op) {
			return true
		}
	}
	return false
}

func either(items []string, wanted string) bool {
	for _, item := range items {
		if item == "*" || item == wanted {
			return true
		}
	}
	return false
}

func matchResource(items []string, wanted, subresource string) bool {
	for _, item := range items {
		res, sub, _ := strings.Cut(item, "/")
		if (res == "*" || res == wanted) && (sub == "*" || sub == subresource) {
			return true
		}
	}
	return false
}

func (c *Criteria) matchNamespace(ctx context.Context, q *Request) (bool, error) {
	if q.Namespace == "" && q.Descriptor.Resource != "namespaces" {
		return true, nil // objects without a namespace are never exempt
	}
	if c.namespaceErr != nil {
		return false, apierrors.NewInternalError(c.namespaceErr)
	}
	if c.namespaces == nil || c.namespaces.Empty() {
		return true, nil
	}
	have, err := q.namespaceLabels(ctx)
	if err != nil {
		if apierrors.IsNotFound(err) {
			return false, err
		}
		return false, apierrors.NewInternalError(err)
	}
	return c.namespaces.Matches(labels.Set(have)), nil
}

func (c *Criteria) matchObjects(q *Request) (bool, error) {
	if c.objErr != nil {
		return false, apierrors.NewInternalError(c.objErr)
	}
	if c.objects == nil || c.objects.Empty() {
		return true, nil
	}
	return matchLabels(q.Current(), c.objects) || matchLabels(q.Old, c.objects), nil
}

func matchLabels(obj resource.Object, s labels.Selector) bool {
	return obj != nil && s.Matches(labels.Set(obj.GetLabels()))
}
