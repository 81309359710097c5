// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/resource"
)

// Form is how registrations are stored: the kind of the objects that name the services.
type Form struct {
	// Kind appears in warnings, in errors and in the ledger.
	Kind     string
	Resource schema.GroupResource
	// Registration returns the registration that an object stands for. Its name and UID are the object's. Nil: the object
	// stands for none.
	Registration func(obj resource.Object) *apiregistrationv1.APIService
	// SetConditions writes the conditions of a registration into its object.
	SetConditions func(obj resource.Object, conditions []apiregistrationv1.APIServiceCondition)
	// Extension returns the name of a registration's server in the ledger. Nil: the registration's own.
	Extension func(name string) string
	// ByName is true if several registrations may have the same group version: [Aggregator.Find] finds them by name.
	ByName bool
}

// apiServices is the form of APIServices.
var apiServices = &Form{
	Kind: "APIService", Resource: registrations,
	Registration: func(obj resource.Object) *apiregistrationv1.APIService {
		r, _ := obj.(*apiregistrationv1.APIService)
		return r
	},
	SetConditions: func(resource.Object, []apiregistrationv1.APIServiceCondition) {}, // the registration is the object
}

// registration returns the registration that an object stands for; nil: none.
func (f *Form) registration(obj resource.Object) *apiregistrationv1.APIService {
	if obj == nil {
		return nil
	}
	return f.Registration(obj)
}

// ref returns the name of a registration's server in the ledger.
func (f *Form) ref(group, name string) extension.Ref {
	ref := extension.Ref{Point: extension.AggregatedAPI, Name: name}
	if f.Extension != nil {
		ref.Name = f.Extension(name)
	}
	switch group {
	case "metrics.k8s.io", "custom.metrics.k8s.io", "external.metrics.k8s.io":
		ref.Point = extension.MetricsAPI
	}
	return ref
}
