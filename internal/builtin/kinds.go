// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"net/netip"

	"github.com/mortise-dev/mortise/internal/kinds"
	"github.com/mortise-dev/mortise/internal/kinds/authentication"
	"github.com/mortise-dev/mortise/resource"
)

// Kinds are the kinds that are served from the start. The list itself stands in internal/kinds, a line a kind. Verify is
// who says what a token review answers.
func Kinds(serviceCIDR netip.Prefix, verify authentication.Verify) []*resource.Descriptor {
	return kinds.All(kinds.Options{ServiceCIDR: []netip.Prefix{serviceCIDR}, Verify: verify})
}
