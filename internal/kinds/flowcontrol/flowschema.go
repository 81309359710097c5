// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package flowcontrol describes the kinds of the group flowcontrol.apiserver.k8s.io, a file each.
package flowcontrol

import (
	"cmp"
	"slices"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// FlowSchema describes flow schemas, with the subresource status.
func FlowSchema() *resource.Descriptor {
	check := upstream.FlowSchema()
	d := kind.Describe[*flowcontrolv1.FlowSchema](resource.Descriptor{
		Group:    "flowcontrol.apiserver.k8s.io",
		Resource: "flowschemas",
		Kind:     "FlowSchema",
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(f *flowcontrolv1.FlowSchema) {
				f.Status = flowcontrolv1.FlowSchemaStatus{}
				f.Generation = 1
			}),
			PrepareUpdate: kind.OnUpdate(func(f, old *flowcontrolv1.FlowSchema) {
				f.Status = old.Status
				if !kind.Same(f.Spec, old.Spec) {
					f.Generation = old.Generation + 1
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
		},
		Subresources: []resource.Subresource{
			kind.Status(func(f, old *flowcontrolv1.FlowSchema) {
				f.Spec = old.Spec
				managed := f.ManagedFields
				f.ObjectMeta = old.ObjectMeta
				f.ManagedFields = managed
			}, check.Status),
		},
	})
	d.Versions[0].Columns = inOrder{d.Versions[0].Columns}
	return d
}

// inOrder lists flow schemas in the order in which the server matches requests.
type inOrder struct{ resource.Columns }

// Order sorts by precedence, then by name.
func (inOrder) Order(objs []resource.Object) {
	slices.SortStableFunc(objs, func(a, b resource.Object) int {
		x, y := a.(*flowcontrolv1.FlowSchema), b.(*flowcontrolv1.FlowSchema)
		return cmp.Or(cmp.Compare(x.Spec.MatchingPrecedence, y.Spec.MatchingPrecedence), cmp.Compare(x.Name, y.Name))
	})
}
