// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"fmt"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// ResourceSlice describes resource slices.
func ResourceSlice() *resource.Descriptor {
	check := upstream.ResourceSlice()
	return kind.Describe[*resourcev1.ResourceSlice](resource.Descriptor{
		Group:      "resource.k8s.io",
		Resource:   "resourceslices",
		Kind:       "ResourceSlice",
		FieldNames: []string{"spec.nodeName", "spec.driver", "spec.pool.name"},
		Fields: kind.Fields(func(r *resourcev1.ResourceSlice) fields.Set {
			node := ""
			if r.Spec.NodeName != nil {
				node = *r.Spec.NodeName
			}
			return fields.Set{"spec.nodeName": node, "spec.driver": r.Spec.Driver, "spec.pool.name": r.Spec.Pool.Name}
		}),
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(r *resourcev1.ResourceSlice) {
				dropOff(r, nil)
				r.Generation = 1
			}),
			PrepareUpdate: kind.OnUpdate(func(r, old *resourcev1.ResourceSlice) {
				if !kind.Same(r.Spec, old.Spec) { // also by fields that are dropped, as upstream
					r.Generation = old.Generation + 1
				}
				dropOff(r, old)
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			ReturnDeleted:  true,
			Warn: kind.Warn(func(r, _ *resourcev1.ResourceSlice) []string {
				if r.Spec.Driver == strings.ToLower(r.Spec.Driver) {
					return nil
				}
				return []string{fmt.Sprintf("spec.driver: driver names should be lowercase; %q contains uppercase characters", r.Spec.Driver)}
			}),
		},
	})
}
