// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// ResourceQuota describes resource quotas, with the subresource status.
func ResourceQuota() *resource.Descriptor {
	check := upstream.ResourceQuota()
	return kind.Describe[*corev1.ResourceQuota](resource.Descriptor{
		Resource:   "resourcequotas",
		Kind:       "ResourceQuota",
		ShortNames: []string{"quota"},
		Namespaced: true,
		Strategy: resource.Strategy{
			PrepareCreate:  kind.OnCreate(func(q *corev1.ResourceQuota) { q.Status = corev1.ResourceQuotaStatus{} }),
			PrepareUpdate:  kind.OnUpdate(func(q, old *corev1.ResourceQuota) { q.Status = old.Status }),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			ReturnDeleted:  true,
			Warn: kind.Warn(func(q, old *corev1.ResourceQuota) []string {
				if old != nil {
					return nil
				}
				return quotaWarnings(q)
			}),
		},
		Subresources: []resource.Subresource{
			kind.Status(func(q, old *corev1.ResourceQuota) { q.Spec = old.Spec }, check.Status),
		},
	})
}

// quotaWarnings returns warnings about requests that may exceed limits.
func quotaWarnings(q *corev1.ResourceQuota) []string {
	var out []string
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceStorage,
		corev1.ResourceEphemeralStorage} {
		asked := "requests." + name
		request, ok := q.Spec.Hard[asked]
		if !ok && (name == corev1.ResourceCPU || name == corev1.ResourceMemory) {
			if request, ok = q.Spec.Hard[name]; ok {
				asked = name
			}
		}
		limit, limited := q.Spec.Hard["limits."+name]
		if ok && limited && request.Cmp(limit) > 0 {
			out = append(out, fmt.Sprintf("ResourceQuota %s (%s) should be less than %s (%s)", asked, request.String(), "limits."+name,
				limit.String()))
		}
	}
	return out
}
