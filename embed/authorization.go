// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"fmt"
	"os"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize/abac"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/modes"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/node"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/rbac"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
)

// authorization is what decides who may do what.
type authorization struct {
	settings *modes.Settings
	chain    *modes.Chain
	roles    *rbac.Index
	nodes    *node.Graph // nil: no authorizer asks
}

// checkAuthorization reads what says who may do what.
func checkAuthorization(_ context.Context, p *parts, o *settled) (err error) {
	p.authorization.settings, err = modes.Load(o.apiserver.Authorization, func(line []byte) (abac.Policy, bool, error) {
		policy, old, err := upstream.DecodeABACPolicy(line)
		return abac.Policy(policy), old, err
	})
	return err
}

// makeAuthorization makes the authorizers.
func makeAuthorization(_ context.Context, p *parts, o *settled) error {
	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("find the host's name: %w", err)
	}
	a := &p.authorization
	a.roles = &rbac.Index{}
	if a.settings.Has(modes.Node) {
		a.nodes = node.NewGraph()
	}
	a.chain, err = a.settings.Build(modes.Options{
		Roles: a.roles, Node: &node.Authorizer{Graph: a.nodes, Rules: upstream.NodeRules()},
		Ledger: p.ledger, Egress: p.egress, Log: o.log.With("part", "authorization"), ServerID: identity(hostname),
	})
	return err
}

// rules is what a rules review asks.
func (p *parts) rules(ctx context.Context, u user.Info, namespace string) ([]authorizationv1.ResourceRule, []authorizationv1.NonResourceRule, bool, error) {
	return p.authorization.chain.Review(ctx, u, namespace)
}

// followAuthorization reads the authorization configuration again when its file changes.
func followAuthorization(_ context.Context, p *parts, _ *settled) error {
	p.server.Go(func() { p.watch(p.server.context, "authorization", p.authorization.chain.Run) })
	return nil
}
