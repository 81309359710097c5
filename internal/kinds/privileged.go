// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/resource"
)

// allowPrivileged removes the rejection of privileged containers from a kind's validation; upstream's validation rejects
// them unless the whole process allows them (--allow-privileged). Two servers in one process may differ.
func allowPrivileged(d *resource.Descriptor) {
	strategies := []*resource.Strategy{&d.Strategy}
	for i := range d.Subresources {
		if s := d.Subresources[i].Strategy; s != nil {
			strategies = append(strategies, s)
		}
	}
	for _, s := range strategies {
		if create := s.Validate; create != nil {
			s.Validate = func(ctx context.Context, obj resource.Object) field.ErrorList {
				return withoutPrivileged(create(ctx, obj))
			}
		}
		if update := s.ValidateUpdate; update != nil {
			s.ValidateUpdate = func(ctx context.Context, obj, old resource.Object) field.ErrorList {
				return withoutPrivileged(update(ctx, obj, old))
			}
		}
	}
}

// runsPods are the kinds that hold a pod or its template.
var runsPods = []string{"CronJob", "DaemonSet", "Deployment", "Job", "Pod", "PodTemplate", "ReplicaSet", "ReplicationController",
	"StatefulSet"}

func withoutPrivileged(errs field.ErrorList) field.ErrorList {
	return slices.DeleteFunc(errs, func(e *field.Error) bool {
		return e.Type == field.ErrorTypeForbidden &&
			(e.Detail == "disallowed by cluster policy" || e.Detail == "hostProcess containers are disallowed by cluster policy")
	})
}
