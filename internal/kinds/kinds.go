// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package kinds lists the built-in kinds. Each is a descriptor made by one function, one file a kind, in the package of
// its group; adding a kind is adding a file there and a line here.
package kinds

import (
	"net/netip"

	"github.com/mortise-dev/mortise/internal/kinds/core"
	"github.com/mortise-dev/mortise/resource"
)

// Options are what the kinds must know of the cluster. The zero value is of use.
type Options struct {
	// ServiceCIDR are the ranges of cluster IPs, one for each IP family, the preferred first; none: 10.96.0.0/16.
	ServiceCIDR []netip.Prefix
}

// All makes the descriptors of all built-in kinds. A second call makes others that share nothing with the first's.
func All(o Options) []*resource.Descriptor {
	if len(o.ServiceCIDR) == 0 {
		o.ServiceCIDR = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	}
	return []*resource.Descriptor{
		core.Binding(),
		core.ConfigMap(),
		core.Namespace(),
		core.Node(),
		core.Pod(),
		core.Secret(),
		core.Service(o.ServiceCIDR),
		core.ServiceAccount(),
	}
}
