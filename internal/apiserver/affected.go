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

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/resource"
)

// objectReader reads stored objects.
type objectReader interface {
	Get(ctx context.Context, r schema.GroupResource, namespace, name string) (resource.Object, error)
}

// mostAffected limits what is listed of one extension.
const mostAffected = 50

// affectedBy returns what the death of an extension affects, by the object that configures it; nil: this does not tell.
func affectedBy(ctx context.Context, objects objectReader, row *extension.Row) []extension.Affected {
	configuration, hook, _ := strings.Cut(row.Name, "/")
	const group = "admissionregistration.k8s.io"
	var out []extension.Affected
	switch row.Point {
	case extension.MutatingWebhook:
		obj, err := objects.Get(ctx, schema.GroupResource{Group: group, Resource: "mutatingwebhookconfigurations"}, "", configuration)
		if c, ok := obj.(*admissionregistrationv1.MutatingWebhookConfiguration); ok && err == nil {
			for _, w := range c.Webhooks {
				if w.Name == hook {
					out = affectedRequests(w.Rules, w.FailurePolicy)
				}
			}
		}
	case extension.ValidatingWebhook:
		obj, err := objects.Get(ctx, schema.GroupResource{Group: group, Resource: "validatingwebhookconfigurations"}, "", configuration)
		if c, ok := obj.(*admissionregistrationv1.ValidatingWebhookConfiguration); ok && err == nil {
			for _, w := range c.Webhooks {
				if w.Name == hook {
					out = affectedRequests(w.Rules, w.FailurePolicy)
				}
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
	}
	return out[:min(len(out), mostAffected)]
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
			var resources []string
			for _, r := range rule.Resources {
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
				resources = append(resources, name)
			}
			what := strings.Join(operations, ", ") + " " + strings.Join(resources, ", ")
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
