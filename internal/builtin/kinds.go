// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"net/netip"

	"github.com/mortise-dev/mortise/internal/kinds"
	"github.com/mortise-dev/mortise/resource"
)

// Kinds are the kinds that are served from the start. The list itself stands in internal/kinds, a line a kind.
func Kinds(serviceCIDR netip.Prefix) []*resource.Descriptor {
	return kinds.All(kinds.Options{ServiceCIDR: []netip.Prefix{serviceCIDR}})
}
