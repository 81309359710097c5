// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"net/netip"

	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/rbac"
	"github.com/mortise-dev/mortise/internal/kinds"
	"github.com/mortise-dev/mortise/internal/kinds/authentication"
	"github.com/mortise-dev/mortise/internal/kinds/authorization"
	"github.com/mortise-dev/mortise/internal/kinds/devices"
	rbackinds "github.com/mortise-dev/mortise/internal/kinds/rbac"
	"github.com/mortise-dev/mortise/resource"
)

// Access is who answers the kinds that ask about users.
type Access struct {
	Verify    authentication.Verify   // token reviews
	Authorize authorization.Authorize // access reviews
	Rules     authorization.Rules     // rules reviews
	Roles     *rbac.Index             // what users may give to others
	// Namespaces finds those in which administrators may claim devices.
	Namespaces devices.Namespaces
	// Dial is the way to nodes, pods and services; nil: the ordinary one.
	Dial egress.Dial
}

// Kinds are the kinds that are served from the start. The list itself stands in internal/kinds, a line a kind. privileged
// reports whether pods may have privileged containers, config which versions and resources are served.
func Kinds(serviceCIDRs []netip.Prefix, privileged bool, config kinds.RuntimeConfig, a Access) []*resource.Descriptor {
	return kinds.All(kinds.Options{
		ServiceCIDR:     serviceCIDRs,
		AllowPrivileged: privileged,
		RuntimeConfig:   config,
		Verify:          a.Verify, Authorize: a.Authorize, Rules: a.Rules,
		Roles:      rbackinds.Authority{Authorize: a.Authorize, RulesFor: a.Roles.RulesFor, RulesOf: a.Roles.RulesOf},
		Namespaces: a.Namespaces,
		Dial:       a.Dial,
	})
}
