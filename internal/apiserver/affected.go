// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"cmp"
	"context"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver/crd"
	"github.com/mortise-dev/mortise/resource"
)

// objectReader reads stored objects.
type objectReader interface {
	Get(ctx context.Context, r schema.GroupResource, namespace, name string) (resource.Object, error)
	List(ctx context.Context, r schema.GroupResource, namespace string) ([]resource.Object, error)
}

// mostAffected limits what is listed of one extension.
const mostAffected = 50

// admissions are the kinds that configure admission, by their point.
var admissions = map[extension.Point]string{
	extension.MutatingWebhook:   "mutatingwebhookconfigurations",
	extension.ValidatingWebhook: "validatingwebhookconfigurations",
	extension.MutatingPolicy:    "mutatingadmissionpolicies",
	extension.ValidatingPolicy:  "validatingadmissionpolicies",
}

// affectedBy returns what the death of an extension affects: by the objects that configure it or depend on it, and where there are none,
// by its point.
func affectedBy(ctx context.Context, objects objectReader, row *extension.Row) []extension.Affected {
	var out []extension.Affected
	switch row.Point {
	case extension.MutatingWebhook, extension.ValidatingWebhook, extension.MutatingPolicy, extension.ValidatingPolicy:
		configuration, hook, _ := strings.Cut(row.Name, "/")
		r := schema.GroupResource{Group: "admissionregistration.k8s.io", Resource: admissions[row.Point]}
		if obj, err := objects.Get(ctx, r, "", configuration); err == nil {
			rules, policy := matched(obj, hook)
			out = affectedRequests(rules, policy)
		}
	case extension.Initializer:
		if _, name, ok := strings.Cut(row.Configured, "/"); ok {
			r := schema.GroupResource{Group: v1alpha1.Group, Resource: v1alpha1.Resource}
			if obj, err := objects.Get(ctx, r, "", name); err == nil {
				out = affectedCreations(obj, row.Name)
			}
		}
	case extension.ConversionWebhook:
		obj, err := objects.Get(ctx, definitions, "", row.Name)
		if d, ok := obj.(*apiextensionsv1.CustomResourceDefinition); ok && err == nil {
			out = affectedVersions(d)
		}
	case extension.AggregatedAPI:
		if version, of, ok := strings.Cut(row.Name, "."); ok && strings.HasPrefix(row.Configured, "APIService/") {
			out = append(out, extension.Affected{What: of + "/" + version, Effect: extension.Unavailable})
		}
	default:
		out = dependents(ctx, objects, row)
	}
	if len(out) == 0 {
		out = affectedAt[row.Point]
	}
	return out[:min(len(out), mostAffected)]
}

// matched returns the rules of an object that configures admission, or of its named webhook, and what a failure of theirs does.
func matched(obj resource.Object, hook string) (
	rules []admissionregistrationv1.RuleWithOperations, policy *admissionregistrationv1.FailurePolicyType,
) {
	named := func(all *admissionregistrationv1.MatchResources) {
		if all == nil {
			return
		}
		for i := range all.ResourceRules {
			rules = append(rules, all.ResourceRules[i].RuleWithOperations)
		}
	}
	switch c := obj.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		if i := slices.IndexFunc(c.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool { return w.Name == hook }); i >= 0 {
			return c.Webhooks[i].Rules, c.Webhooks[i].FailurePolicy
		}
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		if i := slices.IndexFunc(c.Webhooks, func(w admissionregistrationv1.ValidatingWebhook) bool { return w.Name == hook }); i >= 0 {
			return c.Webhooks[i].Rules, c.Webhooks[i].FailurePolicy
		}
	case *admissionregistrationv1.MutatingAdmissionPolicy:
		named(c.Spec.MatchConstraints)
		policy = c.Spec.FailurePolicy
	case *admissionregistrationv1.ValidatingAdmissionPolicy:
		named(c.Spec.MatchConstraints)
		policy = c.Spec.FailurePolicy
	}
	return rules, policy
}

// affectedRequests returns the requests that a webhook's rules match.
func affectedRequests(
	rules []admissionregistrationv1.RuleWithOperations, policy *admissionregistrationv1.FailurePolicyType,
) []extension.Affected {
	effect := extension.Refused
	if policy != nil && *policy == admissionregistrationv1.Ignore {
		effect = extension.Unchecked
	}
	var out []extension.Affected
	for _, rule := range rules {
		var operations []string
		for _, o := range rule.Operations {
			operations = append(operations, strings.ToLower(string(o)))
		}
		for _, group := range rule.APIGroups {
			what := strings.Join(operations, ", ") + " " + resourcesOf(group, rule.Resources)
			if rule.Scope != nil && *rule.Scope != admissionregistrationv1.AllScopes {
				what += " (" + strings.ToLower(string(*rule.Scope)) + ")"
			}
			if a := (extension.Affected{What: what, Effect: effect}); !slices.Contains(out, a) {
				out = append(out, a)
			}
		}
	}
	return out
}

// resourcesOf names the resources of a rule in one group.
func resourcesOf(group string, resources []string) string {
	var out []string
	for _, r := range resources {
		name, sub, _ := strings.Cut(r, "/")
		if group != "" && group != "*" {
			name += "." + group
		}
		if sub != "" {
			name += "/" + sub
		}
		if group == "*" {
			name += " of all groups"
		}
		out = append(out, name)
	}
	return strings.Join(out, ", ")
}

// affectedCreations returns the new objects that an initializer of a configuration holds.
func affectedCreations(obj resource.Object, initializer string) (out []extension.Affected) {
	c, err := crd.As[v1alpha1.InitializerConfiguration](obj)
	if err != nil {
		return nil
	}
	for i := range c.Initializers {
		if c.Initializers[i].Name != initializer {
			continue
		}
		for _, rule := range c.Initializers[i].Rules {
			for _, group := range rule.APIGroups {
				out = append(out, extension.Affected{What: "create " + resourcesOf(group, rule.Resources), Effect: extension.Delayed})
			}
		}
	}
	return out
}

// affectedVersions returns the versions of a custom resource that a conversion makes.
func affectedVersions(d *apiextensionsv1.CustomResourceDefinition) (out []extension.Affected) {
	for _, v := range d.Spec.Versions {
		if v.Served && !v.Storage {
			out = append(out, extension.Affected{What: d.Spec.Names.Plural + "." + d.Spec.Group + "/" + v.Name, Effect: extension.Unavailable})
		}
	}
	slices.SortFunc(out, func(a, b extension.Affected) int { return cmp.Compare(a.What, b.What) })
	return out
}
