// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package quota measures the usage of the resources that a ResourceQuota limits. The admission plug-in, which charges
// writes, and the controller, which counts objects, share it: both must compute the same numbers.
//
// An [Evaluator] knows one resource: which names of a quota speak of it, whether an object is in a scope, what an object uses,
// and which writes change that. [For] gives the one of any resource: pods (pods.go), services (services.go), claims of volumes
// (claims.go) and of devices (devices.go) have their own, all others are counted by number (count.go).
//
// All functions are pure but for an evaluator's calls of its [Cluster]; evaluators have no state and are safe for
// concurrent use.
package quota

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Evaluator knows what objects of one resource use.
type Evaluator interface {
	// Charges reports whether a write may change the usage.
	Charges(w Write) bool
	// Names are those of a quota's names that speak of the resource.
	Names(ctx context.Context, of []corev1.ResourceName) ([]corev1.ResourceName, error)
	// Requires rejects an object without the fields that are needed to count the names.
	Requires(names []corev1.ResourceName, obj runtime.Object) error
	// Scoped reports whether the resource's objects can be in scopes at all; InScope whether one is in this.
	Scoped() bool
	InScope(scope corev1.ScopedResourceSelectorRequirement, obj runtime.Object) (bool, error)
	// Usage is the usage of an object, of everything that could be limited.
	Usage(ctx context.Context, obj runtime.Object) (corev1.ResourceList, error)
}

// Write is a write as an [Evaluator] sees it.
type Write struct {
	Create      bool // else an update
	Subresource string
	Object, Old runtime.Object
}

// Cluster is the state around an object that evaluators use.
type Cluster interface {
	Now() time.Time
	DeviceClasses(ctx context.Context) ([]*resourcev1.DeviceClass, error)
	// Pod is nil if there is none.
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	DeviceClaims(ctx context.Context, namespace string) ([]*resourcev1.ResourceClaim, error)
}

var (
	pods         = schema.GroupResource{Resource: "pods"}
	services     = schema.GroupResource{Resource: "services"}
	volumeClaims = schema.GroupResource{Resource: "persistentvolumeclaims"}
	deviceClaims = schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}
)

// ignored are resources that are not kept, or that come in masses and go by themselves.
var ignored = sets.New(
	schema.GroupResource{Resource: "bindings"},
	schema.GroupResource{Resource: "componentstatuses"},
	schema.GroupResource{Group: "authentication.k8s.io", Resource: "tokenreviews"},
	schema.GroupResource{Group: "authentication.k8s.io", Resource: "selfsubjectreviews"},
	schema.GroupResource{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"},
	schema.GroupResource{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"},
	schema.GroupResource{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"},
	schema.GroupResource{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"},
	schema.GroupResource{Resource: "events"},
	schema.GroupResource{Group: "events.k8s.io", Resource: "events"},
)

// Ignored reports whether objects of a resource are never counted.
func Ignored(r schema.GroupResource) bool { return ignored.Has(r) }

// For is the evaluator of a resource, nil if its objects are never counted.
func For(r schema.GroupResource, c Cluster) Evaluator {
	switch {
	case Ignored(r):
		return nil
	case r == pods:
		return podEvaluator{c}
	case r == services:
		return serviceEvaluator{}
	case r == volumeClaims:
		return volumeClaimEvaluator{}
	case r == deviceClaims:
		return deviceClaimEvaluator{c}
	}
	return countEvaluator(namesOf(r))
}

// Resources are those that names may speak of, in order.
func Resources(names []corev1.ResourceName) []schema.GroupResource {
	found := sets.New[schema.GroupResource]()
	for _, name := range names {
		if counted, ok := strings.CutPrefix(string(name), "count/"); ok {
			resource, group, _ := strings.Cut(counted, ".")
			if r := (schema.GroupResource{Group: group, Resource: resource}); !Ignored(r) {
				found.Insert(r)
			}
			continue
		}
		if r, ok := legacy[name]; ok {
			found.Insert(r)
		}
		if len(podNames([]corev1.ResourceName{name})) > 0 {
			found.Insert(pods)
		}
		if slices.Contains(serviceNames, name) {
			found.Insert(services)
		}
		if isVolumeClaimName(name) {
			found.Insert(volumeClaims)
		}
		if mayBeDeviceName(name) {
			found.Insert(deviceClaims)
		}
	}
	out := found.UnsortedList()
	slices.SortFunc(out, func(a, b schema.GroupResource) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// Scopes are a quota's scopes in their one form.
func Scopes(spec *corev1.ResourceQuotaSpec) []corev1.ScopedResourceSelectorRequirement {
	var all []corev1.ScopedResourceSelectorRequirement
	for _, s := range spec.Scopes {
		all = append(all, corev1.ScopedResourceSelectorRequirement{ScopeName: s, Operator: corev1.ScopeSelectorOpExists})
	}
	if spec.ScopeSelector != nil {
		all = append(all, spec.ScopeSelector.MatchExpressions...)
	}
	return all
}

// InScopes reports whether an object is in all of the scopes.
func InScopes(e Evaluator, scopes []corev1.ScopedResourceSelectorRequirement, obj runtime.Object) (bool, error) {
	for _, s := range scopes {
		if !e.Scoped() {
			return false, nil
		}
		if in, err := e.InScope(s, obj); err != nil || !in {
			return false, err
		}
	}
	return true, nil
}

// Sum is the total usage of names by the objects in the scopes.
func Sum(ctx context.Context, e Evaluator, names []corev1.ResourceName, scopes []corev1.ScopedResourceSelectorRequirement,
	objs []runtime.Object) (corev1.ResourceList, error) {
	sum := Zero(names)
	if len(scopes) > 0 && !e.Scoped() {
		return sum, nil
	}
	for _, obj := range objs {
		in, err := InScopes(e, scopes, obj)
		if err != nil {
			return nil, err
		}
		if !in {
			continue
		}
		used, err := e.Usage(ctx, obj)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if q, ok := used[name]; ok {
				total := sum[name]
				total.Add(q)
				sum[name] = total
			}
		}
	}
	return sum, nil
}

// Zero is none of each name.
func Zero(names []corev1.ResourceName) corev1.ResourceList {
	list := make(corev1.ResourceList, len(names))
	for _, name := range names {
		list[name] = *decimal(0)
	}
	return list
}

// selects reports whether one of the values that an object has for a scope is what the selector asks for.
func selects(s corev1.ScopedResourceSelectorRequirement, values ...string) (bool, error) {
	var op selection.Operator
	switch s.Operator {
	case corev1.ScopeSelectorOpIn:
		op = selection.In
	case corev1.ScopeSelectorOpNotIn:
		op = selection.NotIn
	case corev1.ScopeSelectorOpExists:
		op = selection.Exists
	case corev1.ScopeSelectorOpDoesNotExist:
		op = selection.DoesNotExist
	default:
		// upstream's words
		return false, fmt.Errorf("failed to parse and convert selector: %q is not a valid scope selector operator", s.Operator)
	}
	r, err := labels.NewRequirement(string(s.ScopeName), op, s.Values)
	if err != nil {
		return false, fmt.Errorf("failed to parse and convert selector: %w", err) // upstream's words
	}
	if len(values) == 0 {
		return r.Matches(labels.Set{}), nil
	}
	for _, v := range values {
		if r.Matches(labels.Set{string(s.ScopeName): v}) {
			return true, nil
		}
	}
	return false, nil
}
