// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package storage describes the kinds of the group storage.k8s.io, a file each.
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

// StorageClass describes storage classes.
func StorageClass() *resource.Descriptor {
	check := upstream.StorageClass()
	return kind.Describe[*storagev1.StorageClass](resource.Descriptor{
		Group:      "storage.k8s.io",
		Resource:   "storageclasses",
		Kind:       "StorageClass",
		ShortNames: []string{"sc"},
		Strategy: resource.Strategy{
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			ReturnDeleted:  true,
			Warn: kind.Warn(func(s, _ *storagev1.StorageClass) []string {
				var out []string
				for i, t := range s.AllowedTopologies {
					for j, e := range t.MatchLabelExpressions {
						if msg, ok := podspec.NodeLabelWarning(e.Key); ok {
							out = append(out, fmt.Sprintf("%s: %s", field.NewPath("allowedTopologies").Index(i).Child("matchLabelExpressions").Index(j).Child(
								"key"), msg))
						}
					}
				}
				return out
			}),
		},
	})
}
