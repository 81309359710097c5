// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package apiregistration describes the one kind of the group apiregistration.k8s.io.
package apiregistration

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// APIService describes the registration of API servers, with the subresource status.
func APIService() *resource.Descriptor {
	check := upstream.APIService()
	status := kind.Status(func(a, old *apiregistrationv1.APIService) {
		a.Spec = old.Spec
		a.Labels, a.Annotations = old.Labels, old.Annotations
		a.Finalizers, a.OwnerReferences = old.Finalizers, old.OwnerReferences
	}, check.Status)
	status.Strategy.Conditional = true
	d := kind.Describe[*apiregistrationv1.APIService](resource.Descriptor{
		Group:      "apiregistration.k8s.io",
		Resource:   "apiservices",
		Kind:       "APIService",
		Categories: []string{"api-extensions"},
		Prefix:     "apiregistration.k8s.io/apiservices",
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(a *apiregistrationv1.APIService) {
				a.Status = apiregistrationv1.APIServiceStatus{}
				if a.Spec.Service == nil {
					a.Status.Conditions = []apiregistrationv1.APIServiceCondition{{
						Type:               apiregistrationv1.Available,
						Status:             apiregistrationv1.ConditionTrue,
						LastTransitionTime: metav1.Now(),
						Reason:             "Local",
						Message:            "Local APIServices are always available",
					}}
				}
			}),
			PrepareUpdate:  kind.OnUpdate(func(a, old *apiregistrationv1.APIService) { a.Status = old.Status }),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Conditional:    true,
			Undeclared:     true,
		},
		Subresources: []resource.Subresource{status},
	})
	d.Versions[0].Columns = columns{}
	return d
}

// columns show which service serves an API, and whether it is available.
type columns struct{}

// Definitions are name, service, availability and age.
func (columns) Definitions() []metav1.TableColumnDefinition {
	doc := metav1.ObjectMeta{}.SwaggerDoc()
	return []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: doc["name"]},
		{Name: "Service", Type: "string", Description: "The reference to the service that hosts this API endpoint."},
		{Name: "Available", Type: "string", Description: "Whether this service is available."},
		{Name: "Age", Type: "string", Description: doc["creationTimestamp"]},
	}
}

// Cells returns the cells of one registration.
func (columns) Cells(obj resource.Object) ([]any, error) {
	a, ok := obj.(*apiregistrationv1.APIService)
	if !ok {
		return nil, fmt.Errorf("make row of APIService: %T is none", obj)
	}
	service, available := "Local", string(apiregistrationv1.ConditionUnknown)
	if s := a.Spec.Service; s != nil {
		service = s.Namespace + "/" + s.Name
	}
	for _, c := range a.Status.Conditions {
		if c.Type != apiregistrationv1.Available {
			continue
		}
		available = string(c.Status)
		if c.Status != apiregistrationv1.ConditionTrue && c.Reason != "" {
			available = fmt.Sprintf("%s (%s)", c.Status, c.Reason)
		}
		break
	}
	age := "<unknown>"
	if !a.CreationTimestamp.IsZero() {
		age = duration.HumanDuration(metav1.Now().Sub(a.CreationTimestamp.Time))
	}
	return []any{a.Name, service, available, age}, nil
}
