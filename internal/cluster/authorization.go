// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/abac"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/modes"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/node"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/rbac"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
)

// readAuthorization reads the configuration of the authorizers.
func readAuthorization(o options.Authorization) (*modes.Settings, error) {
	return modes.Load(o, func(line []byte) (abac.Policy, bool, error) {
		policy, old, err := upstream.DecodeABACPolicy(line)
		return abac.Policy(policy), old, err
	})
}

// authorization holds the authorizers. The API server keeps their indexes up to date.
type authorization struct {
	chain *modes.Chain
	roles *rbac.Index
	nodes *node.Graph // nil: no Node authorizer
}

// makeAuthorization creates the authorizers.
func makeAuthorization(s *modes.Settings, o modes.Options) (a authorization, err error) {
	a.roles = &rbac.Index{}
	if s.Has(modes.Node) {
		a.nodes = node.NewGraph()
	}
	o.Roles, o.Node = a.roles, &node.Authorizer{Graph: a.nodes, Rules: upstream.NodeRules()}
	a.chain, err = s.Build(o)
	return a, err
}
