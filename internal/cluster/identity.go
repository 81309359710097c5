// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"net/http"
	"slices"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/internal/agent/simulated"
	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/modes"
	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/kubernetesservice"
	"github.com/mortise-dev/mortise/internal/kinds/bootstrap"
)

// The components of this process use the API under the names that they would have in processes of their own: the scheduler as
// system:kube-scheduler, a controller as its service account in kube-system, a node as system:node:NAME in system:nodes. So roles bind
// them, the Node authorizer and NodeRestriction restrict nodes, and audit and flow control tell them apart. The server itself is
// system:apiserver, an administrator.
//
// RBAC binds the roles. With other authorizers, which do not know the components, they are administrators under their names, since the
// cluster must work with any authorizer.

// components makes the client configurations of the components of this process.
type components struct {
	server *apiserver.Server
	modes  *modes.Settings
}

// as returns an in-process client configuration for a user.
func (c components) as(u user.Info) *rest.Config {
	config := c.server.Config(u)
	config.QPS = -1
	return config
}

// own returns the server's client configuration for itself.
func (c components) own() *rest.Config {
	config := c.as(apiserverUser())
	config.UserAgent = "kube-apiserver"
	return config
}

func (c components) ownClient() kubernetes.Interface { return kubernetes.NewForConfigOrDie(c.own()) }

func apiserverUser() *user.DefaultInfo {
	return &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}
}

// component returns a user whose rights come from roles.
func (c components) component(name string, groups ...string) *user.DefaultInfo {
	return c.decidedBy(modes.RBAC, &user.DefaultInfo{Name: name, Groups: append(groups, user.AllAuthenticated)})
}

// nodeUser returns a user whose rights come from the Node authorizer.
func (c components) nodeUser(name string) *user.DefaultInfo {
	u := &user.DefaultInfo{Name: "system:node:" + name, Groups: []string{user.NodesGroup, user.AllAuthenticated}}
	return c.decidedBy(modes.Node, u)
}

// decidedBy makes u an administrator if the authorizer for u is not enabled.
func (c components) decidedBy(mode string, u *user.DefaultInfo) *user.DefaultInfo {
	if !c.modes.Has(mode) {
		u.Groups = append(u.Groups, user.SystemPrivilegedGroup)
	}
	return u
}

// accounts returns the accounts of controllers that Kubernetes does not have. A bare server runs none of them.
func (c *settings) accounts() (all []bootstrap.Account) {
	if c.versions {
		all = append(all, storageVersionCollector)
	}
	if c.bare {
		return all
	}
	for _, controller := range c.controllers {
		if len(controller.Rules) > 0 {
			all = append(all, bootstrap.Account{Name: controller.Account, Rules: controller.Rules})
		}
	}
	return all
}

// asController returns a controller's client configuration. A controller without an account has no role: it is an administrator.
func (c components) asController(controller controllers.Controller) *rest.Config {
	switch {
	case controller.Name == kubernetesservice.Name:
		return c.as(apiserverUser()) // upstream's server does this itself
	case controller.Account == controllers.Manager:
		return c.manager()
	}
	const namespace = "kube-system"
	account := cmp.Or(controller.Account, controller.Name)
	u := c.component(serviceaccount.MakeUsername(namespace, account), serviceaccount.MakeGroupNames(namespace)...)
	if controller.Account == "" && !slices.Contains(u.Groups, user.SystemPrivilegedGroup) {
		u.Groups = append(u.Groups, user.SystemPrivilegedGroup)
	}
	return c.as(u)
}

// asNodes returns the client configuration of simulated nodes: each request uses its node's user. Requests for all of them together, which
// no node may send, use the controllers' user.
func (c components) asNodes() *rest.Config {
	config := c.manager()
	config.Transport = &byNode{components: c, all: config.Transport}
	return config
}

// manager returns the client configuration that all controllers share.
func (c components) manager() *rest.Config { return c.as(c.component(controllers.Manager)) }

// byNode sends each request as the node that it is about.
type byNode struct {
	components
	all http.RoundTripper
}

// RoundTrip implements [http.RoundTripper].
func (b *byNode) RoundTrip(r *http.Request) (*http.Response, error) {
	if name, ok := simulated.NodeFrom(r.Context()); ok {
		return b.server.Config(b.nodeUser(name)).Transport.RoundTrip(r)
	}
	return b.all.RoundTrip(r)
}
