// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package networking

import (
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// IPAddress describes the objects that stand for cluster IPs in use.
func IPAddress() *resource.Descriptor {
	check := upstream.IPAddress()
	return kind.Describe[*networkingv1.IPAddress](resource.Descriptor{
		Group:      "networking.k8s.io",
		Resource:   "ipaddresses",
		Kind:       "IPAddress",
		ShortNames: []string{"ip"},
		Strategy: resource.Strategy{
			Validate:       check.Create,
			ValidateUpdate: check.Update,
		},
	})
}
