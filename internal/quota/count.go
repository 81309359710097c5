// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// legacy are the names from before there were names for all resources.
var legacy = map[corev1.ResourceName]schema.GroupResource{
	corev1.ResourceConfigMaps:             {Resource: "configmaps"},
	corev1.ResourceQuotas:                 {Resource: "resourcequotas"},
	corev1.ResourceReplicationControllers: {Resource: "replicationcontrollers"},
	corev1.ResourceSecrets:                {Resource: "secrets"},
}

// CountName is the name under which a quota limits the number of a resource's objects.
func CountName(r schema.GroupResource) corev1.ResourceName {
	return corev1.ResourceName("count/" + r.String())
}

// namesOf are all names for the number of a resource's objects.
func namesOf(r schema.GroupResource) []corev1.ResourceName {
	names := []corev1.ResourceName{CountName(r)}
	for name, of := range legacy {
		if of == r {
			names = append(names, name)
		}
	}
	return names
}

// countEvaluator counts objects: it is the names for their number.
type countEvaluator []corev1.ResourceName

func (countEvaluator) Charges(w Write) bool { return w.Create && w.Subresource == "" }

func (e countEvaluator) Names(_ context.Context, of []corev1.ResourceName) ([]corev1.ResourceName, error) {
	return intersect(of, e), nil
}

func (countEvaluator) Requires([]corev1.ResourceName, runtime.Object) error { return nil }

func (countEvaluator) Scoped() bool { return false }

func (countEvaluator) InScope(corev1.ScopedResourceSelectorRequirement, runtime.Object) (bool, error) {
	return false, nil
}

func (e countEvaluator) Usage(context.Context, runtime.Object) (corev1.ResourceList, error) {
	used := make(corev1.ResourceList, len(e))
	for _, name := range e {
		used[name] = *decimal(1)
	}
	return used, nil
}

// Counts reports whether an evaluator only counts objects, so that their contents need not be read.
func Counts(e Evaluator) bool {
	_, ok := e.(countEvaluator)
	return ok
}

func decimal(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.DecimalSI) }

// intersect keeps those names that are among known.
func intersect(names, known []corev1.ResourceName) []corev1.ResourceName {
	var out []corev1.ResourceName
	for _, name := range names {
		if slices.Contains(known, name) {
			out = append(out, name)
		}
	}
	return out
}

// Number is a number of objects.
func Number(n int64) resource.Quantity { return *decimal(n) }
