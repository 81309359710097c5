// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"fmt"

	"github.com/mortise-dev/mortise/internal/kinds/podspec"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// CSIStorageCapacity describes the capacity that a storage driver reports.
func CSIStorageCapacity() *resource.Descriptor {
	check := upstream.CSIStorageCapacity()
	return kind.Describe[*storagev1.CSIStorageCapacity](resource.Descriptor{
		Group:      "storage.k8s.io",
		Resource:   "csistoragecapacities",
		Kind:       "CSIStorageCapacity",
		Namespaced: true,
		Strategy: resource.Strategy{
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Warn: kind.Warn(func(c, _ *storagev1.CSIStorageCapacity) []string {
				if c.NodeTopology == nil {
					return nil
				}
				var out []string
				path := field.NewPath("nodeTopology")
				for i, e := range c.NodeTopology.MatchExpressions {
					if msg, ok := podspec.NodeLabelWarning(e.Key); ok {
						out = append(out, fmt.Sprintf("%s: %s is %s", path.Child("matchExpressions").Index(i).Child("key"), e.Key, msg))
					}
				}
				for label := range c.NodeTopology.MatchLabels {
					if msg, ok := podspec.NodeLabelWarning(label); ok {
						out = append(out, fmt.Sprintf("%s: %s", path.Child("matchLabels").Child(label), msg))
					}
				}
				return out
			}),
			Conditional: true,
		},
	})
}
