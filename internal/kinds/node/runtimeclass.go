// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package node describes the one kind of the group node.k8s.io.
package node

import (
	"fmt"

	"github.com/mortise-dev/mortise/internal/kinds/podspec"
	nodev1 "k8s.io/api/node/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// RuntimeClass describes runtime classes.
func RuntimeClass() *resource.Descriptor {
	check := upstream.RuntimeClass()
	return kind.Describe[*nodev1.RuntimeClass](resource.Descriptor{
		Group:    "node.k8s.io",
		Resource: "runtimeclasses",
		Kind:     "RuntimeClass",
		Strategy: resource.Strategy{
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Warn: kind.Warn(func(r, _ *nodev1.RuntimeClass) []string {
				if r.Scheduling == nil {
					return nil
				}
				var out []string
				for key := range r.Scheduling.NodeSelector {
					if msg, ok := podspec.NodeLabelWarning(key); ok {
						out = append(out, fmt.Sprintf("scheduling.nodeSelector: %s", msg))
					}
				}
				return out
			}),
			CreateOnUpdate: true,
			Conditional:    true,
		},
	})
}
