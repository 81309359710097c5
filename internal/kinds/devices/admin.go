// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/resource"
)

// Namespaces finds a namespace. Claims with admin access are allowed in namespaces with the label for it. Nil: in none.
type Namespaces func(ctx context.Context, name string) (*corev1.Namespace, error)

// allow returns an error at path unless the namespace allows admin access to devices.
func (find Namespaces) allow(ctx context.Context, path *field.Path, name string) field.ErrorList {
	if path == nil {
		return nil
	}
	var ns *corev1.Namespace
	err := error(apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, name))
	if find != nil {
		ns, err = find(ctx, name)
	}
	if err != nil {
		return field.ErrorList{field.InternalError(path, fmt.Errorf("could not retrieve namespace to verify admin access: %w", err))}
	}
	if ns.Labels[resourcev1.DRAAdminNamespaceLabelKey] == "true" {
		return nil
	}
	return field.ErrorList{field.Forbidden(path, fmt.Sprintf(
		"admin access to devices requires the `%s: true` label on the containing namespace", resourcev1.DRAAdminNamespaceLabelKey))}
}

// adminRequest returns the path of the first request with admin access, or nil.
func adminRequest(spec *resourcev1.ResourceClaimSpec) *field.Path {
	for i, r := range spec.Devices.Requests {
		if r.Exactly != nil && r.Exactly.AdminAccess != nil && *r.Exactly.AdminAccess {
			return field.NewPath("spec", "devices", "requests").Index(i).Child("adminAccess")
		}
	}
	return nil
}

// adminResult returns the path of the first device that is allocated with admin access, or nil.
func adminResult(a *resourcev1.AllocationResult) *field.Path {
	if a == nil {
		return nil
	}
	for i, r := range a.Devices.Results {
		if r.AdminAccess != nil && *r.AdminAccess {
			return field.NewPath("status", "allocation", "devices", "results").Index(i).Child("adminAccess")
		}
	}
	return nil
}

// newClaim adds the check of admin access to the validation of a new claim or template. A spec never changes later.
func (find Namespaces) newClaim(check func(context.Context, resource.Object) field.ErrorList,
	spec func(resource.Object) *resourcev1.ResourceClaimSpec) func(context.Context, resource.Object) field.ErrorList {
	return func(ctx context.Context, obj resource.Object) field.ErrorList {
		return append(find.allow(ctx, adminRequest(spec(obj)), obj.GetNamespace()), check(ctx, obj)...)
	}
}

// newStatus adds the check of admin access to the validation of an allocation.
func (find Namespaces) newStatus(check func(ctx context.Context, obj, old resource.Object) field.ErrorList) func(ctx context.Context, obj,
	old resource.Object) field.ErrorList {
	return func(ctx context.Context, obj, old resource.Object) field.ErrorList {
		var errs field.ErrorList
		if adminResult(old.(*resourcev1.ResourceClaim).Status.Allocation) == nil {
			errs = find.allow(ctx, adminResult(obj.(*resourcev1.ResourceClaim).Status.Allocation), obj.GetNamespace())
		}
		return append(errs, check(ctx, obj, old)...)
	}
}

// dropSkipped drops from an allocation the field that names the node operations to skip, unless the gate is on or the old one has some.
func dropSkipped(claim, old *resourcev1.ResourceClaim, gate bool) {
	if gate || claim.Status.Allocation == nil {
		return
	}
	if a := old.Status.Allocation; a != nil {
		for _, r := range a.Devices.Results {
			if len(r.SkipNodeOperations) > 0 {
				return
			}
		}
	}
	for i := range claim.Status.Allocation.Devices.Results {
		claim.Status.Allocation.Devices.Results[i].SkipNodeOperations = nil
	}
}
