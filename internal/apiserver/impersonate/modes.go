// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package impersonate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
)

// mode is one way to be allowed to act as another.
type mode struct {
	name    string                                           // empty: the old way, unconstrained
	applies func(who *user.DefaultInfo, from user.Info) bool // nil: always
}

// modes are tried in this order.
func modes() []mode {
	return []mode{
		{associatedNode, func(who *user.DefaultInfo, from user.Info) bool { return nameAlone(who) && runsOn(from, who.Name) }},
		{"arbitrary-node", func(who *user.DefaultInfo, _ user.Info) bool { return nameAlone(who) && isNode(who.Name) }},
		{"serviceaccount", func(who *user.DefaultInfo, _ user.Info) bool { return nameAlone(who) && isServiceAccount(who.Name) }},
		{"user-info", func(who *user.DefaultInfo, _ user.Info) bool { return !isNode(who.Name) && !isServiceAccount(who.Name) }},
		{},
	}
}

// associatedNode lets what runs on a node act as that node. It is allowed for all nodes at once.
const associatedNode = "associated-node"

func (m *mode) constrained() bool { return m.name != "" }

// verb is the one by which a user may be impersonated.
func (m *mode) verb() string {
	if !m.constrained() {
		return "impersonate"
	}
	return "impersonate:" + m.name
}

// constraint is what the audit log says of how it was allowed.
func (m *mode) constraint() string {
	if !m.constrained() {
		return ""
	}
	return m.verb()
}

func nameAlone(who *user.DefaultInfo) bool {
	return who.UID == "" && len(who.Groups) == 0 && len(who.Extra) == 0
}

const nodePrefix = "system:node:"

func isNode(name string) bool {
	node, ok := strings.CutPrefix(name, nodePrefix)
	return ok && len(validation.NameIsDNSSubdomain(node, false)) == 0
}

func isServiceAccount(name string) bool {
	_, _, err := serviceaccount.SplitUsername(name)
	return err == nil
}

// runsOn reports whether from is a service account whose token is bound to the node.
func runsOn(from user.Info, name string) bool {
	node := from.GetExtra()[serviceaccount.NodeNameKey]
	return isNode(name) && isServiceAccount(from.GetName()) && len(node) == 1 && nodePrefix+node[0] == name
}

// onNode is a service account as authorizers see it who are asked about the node that it runs on: what differs from pod to pod is
// left out.
func onNode(from user.Info) user.Info {
	return &user.DefaultInfo{Name: from.GetName(), UID: from.GetUID(), Groups: from.GetGroups(), Extra: map[string][]string{
		"authentication.kubernetes.io/associated-node-keys": slices.Sorted(maps.Keys(from.GetExtra())),
	}}
}

// check asks whether one mode allows a request.
type check struct {
	may     authorize.Authorizer
	mode    *mode
	request authorize.Attributes
	from    user.Info
}

// as returns the impersonated user.
func (c *check) as(ctx context.Context, who *user.DefaultInfo) (user.Info, error) {
	if c.mode.name == associatedNode {
		c.from = onNode(c.from)
	}
	if c.mode.constrained() {
		on := c.request
		on.User, on.Verb = c.from, "impersonate-on:"+c.mode.name+":"+on.Verb
		if err := c.ask(ctx, &on); err != nil {
			return nil, err
		}
	}
	as := *who
	if err := c.name(ctx, &as); err != nil {
		return nil, err
	}
	if who.UID != "" {
		a := c.attributes("authentication.k8s.io", "uids", who.UID)
		if err := c.ask(ctx, &a); err != nil {
			return nil, err
		}
	}
	if err := c.groups(ctx, who.Groups); err != nil {
		return nil, err
	}
	if err := c.extra(ctx, who.Extra); err != nil {
		return nil, err
	}
	switch {
	case as.Name == user.Anonymous:
		as.Groups = with(as.Groups, user.AllUnauthenticated)
	case !slices.Contains(as.Groups, user.AllUnauthenticated):
		as.Groups = with(as.Groups, user.AllAuthenticated)
	}
	return &as, nil
}

func with(groups []string, g string) []string {
	if slices.Contains(groups, g) {
		return groups
	}
	return append(slices.Clone(groups), g)
}

// attributes ask for the mode's verb on something of the user.
func (c *check) attributes(group, resource, name string) authorize.Attributes {
	return authorize.Attributes{User: c.from, Verb: c.mode.verb(), Group: group, Version: "v1", Resource: resource, Name: name,
		ResourceRequest: true}
}

// userGroup is the API group of users and groups: the old mode has them in the core.
func (c *check) userGroup() string {
	if c.mode.constrained() {
		return "authentication.k8s.io"
	}
	return ""
}

func (c *check) name(ctx context.Context, as *user.DefaultInfo) error {
	a := c.attributes(c.userGroup(), "users", as.Name)
	if c.mode.constrained() && isNode(as.Name) {
		a.Resource, a.Name = "nodes", strings.TrimPrefix(as.Name, nodePrefix)
		if c.mode.name == associatedNode {
			a.Name = "*"
		}
		as.Groups = []string{user.NodesGroup}
	}
	if namespace, name, err := serviceaccount.SplitUsername(as.Name); err == nil {
		a.Resource, a.Namespace, a.Name = "serviceaccounts", namespace, name
		if len(as.Groups) == 0 {
			as.Groups = serviceaccount.MakeGroupNames(namespace)
		}
	}
	return c.ask(ctx, &a)
}

// many is from how many on it is first asked for all of them at once.
const many = 4

func (c *check) groups(ctx context.Context, groups []string) error {
	a := c.attributes(c.userGroup(), "groups", "")
	if c.mode.constrained() {
		if slices.Contains(groups, "") {
			return authorize.Forbidden(&a, "impersonating the empty string group is not allowed") // upstream's words
		}
		if slices.Contains(groups, user.SystemPrivilegedGroup) {
			a.Name = user.SystemPrivilegedGroup
			return authorize.Forbidden(&a, "impersonating the system:masters group is not allowed") // upstream's words
		}
		if len(groups) >= many {
			a.Name = "*"
			if c.ask(ctx, &a) == nil {
				return nil
			}
		}
	}
	for _, g := range groups {
		a.Name = g
		if err := c.ask(ctx, &a); err != nil {
			return err
		}
	}
	return nil
}

func (c *check) extra(ctx context.Context, extra map[string][]string) error {
	a := c.attributes("authentication.k8s.io", "userextras", "")
	if c.mode.constrained() {
		if err := checkExtra(extra); err != nil {
			return authorize.Forbidden(&a, err.Error())
		}
		n := 0
		for _, values := range extra {
			n += max(1, len(values))
		}
		if n >= many {
			a.Subresource, a.Name = "*", "*"
			if c.ask(ctx, &a) == nil {
				return nil
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(extra)) {
		for _, value := range extra[key] {
			a.Subresource, a.Name = key, value
			if err := c.ask(ctx, &a); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkExtra refuses keys and values that the old mode takes.
func checkExtra(extra map[string][]string) error {
	for _, key := range slices.Sorted(maps.Keys(extra)) {
		if key == "" {
			return errors.New("impersonating the empty string key in extra is not allowed") // upstream's words
		}
		if err := utilvalidation.IsDomainPrefixedPath(field.NewPath("extra", "key"), key).ToAggregate(); err != nil {
			return fmt.Errorf("impersonating an invalid key in extra is not allowed: %w", err) // upstream's words
		}
		if key != strings.ToLower(key) {
			return fmt.Errorf("impersonating a non-lowercase key in extra is not allowed: %q", key) // upstream's words
		}
		if len(extra[key]) == 0 {
			return errors.New("impersonating empty values in extra is not allowed") // upstream's words
		}
		if slices.Contains(extra[key], "") {
			return errors.New("impersonating the empty string value in extra is not allowed") // upstream's words
		}
	}
	return nil
}

// ask is nil if the authorizer allows it.
func (c *check) ask(ctx context.Context, a *authorize.Attributes) error {
	decision, reason, err := c.may.Authorize(ctx, a)
	switch {
	case decision == authorize.Allow:
		return nil
	case apierrors.IsForbidden(err):
		return err
	case err != nil && reason != "":
		reason = err.Error() + ": " + reason
	case err != nil:
		reason = err.Error()
	}
	return authorize.Forbidden(a, reason)
}
