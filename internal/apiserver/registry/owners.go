// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/resource"
)

// DedupOwnerReferences removes owner references that are the same twice, and returns their UIDs. Different ones of one UID are
// for validation to judge.
func DedupOwnerReferences(obj resource.Object) (twice []string) {
	refs := obj.GetOwnerReferences()
	if len(refs) < 2 {
		return nil
	}
	type reference struct {
		metav1.OwnerReference
		controller, blocks string
	}
	said := func(b *bool) string {
		if b == nil {
			return ""
		}
		return strconv.FormatBool(*b)
	}
	seen := make(map[reference]bool, len(refs))
	kept := make([]metav1.OwnerReference, 0, len(refs))
	for _, r := range refs {
		like := reference{r, said(r.Controller), said(r.BlockOwnerDeletion)}
		like.Controller, like.BlockOwnerDeletion = nil, nil
		if seen[like] {
			twice = append(twice, string(r.UID))
			continue
		}
		seen[like] = true
		kept = append(kept, r)
	}
	if len(twice) > 0 {
		obj.SetOwnerReferences(kept)
	}
	return twice
}
