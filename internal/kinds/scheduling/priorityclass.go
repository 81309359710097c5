// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package scheduling describes the one kind of the group scheduling.k8s.io that is served by default.
package scheduling

import (
	"errors"

	schedulingv1 "k8s.io/api/scheduling/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// PriorityClass describes priority classes.
func PriorityClass() *resource.Descriptor {
	check := upstream.PriorityClass()
	return kind.Describe[*schedulingv1.PriorityClass](resource.Descriptor{
		Group:      "scheduling.k8s.io",
		Resource:   "priorityclasses",
		Kind:       "PriorityClass",
		ShortNames: []string{"pc"},
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(p *schedulingv1.PriorityClass) {
				p.Generation = 1
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			RefuseDelete: func(name string) error {
				for _, c := range upstream.SystemPriorityClasses() {
					if c.Name == name {
						return errors.New("this is a system priority class and cannot be deleted")
					}
				}
				return nil
			},
		},
	})
}
