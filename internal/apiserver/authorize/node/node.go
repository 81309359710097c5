// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package node authorizes kubelets: a node may read the objects that pods bound to it refer to, and write its own.
//
// An [Authorizer] decides for users named system:node:NAME in the group system:nodes, and has no opinion about others.
// Fixed rules decide about objects that do not belong to nodes. For the other objects it decides by name, by a field
// selector on the node's name, or by a [Graph] of the objects that are related to each node:
//
//	node ← pod ← secret, config map, service account, resource claim
//	node ← pod ← claim ← volume ← secret
//	node ← volume attachment, resource slice, pod certificate request
//
// The admission plug-in NodeRestriction, which sees the objects, further restricts the writes of nodes.
package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/rbac"
)

const userPrefix = "system:node:"

// Identity reports whether a user is a node, and returns the node's name, which may be empty.
func Identity(u user.Info) (name string, ok bool) {
	if u == nil || !strings.HasPrefix(u.GetName(), userPrefix) || !slices.Contains(u.GetGroups(), user.NodesGroup) {
		return "", false
	}
	return u.GetName()[len(userPrefix):], true
}

// Authorizer authorizes nodes. Graph and Rules are required.
type Authorizer struct {
	Graph *Graph
	Rules []rbacv1.PolicyRule // what every node may do with objects that belong to no node
}

// Name is the type in an AuthorizationConfiguration.
func (*Authorizer) Name() string { return "node" }

// Review reports that a node's rules cannot be listed. It has no rules of other users.
func (*Authorizer) Review(_ context.Context, u user.Info, _ string) ([]authorizationv1.ResourceRule, []authorizationv1.NonResourceRule,
	bool, error) {
	if _, ok := Identity(u); ok {
		return nil, nil, true, errors.New("node authorizer does not support user rule resolution") // upstream's words
	}
	return nil, nil, false, nil
}

// Authorize allows what a node needs, and otherwise has no opinion.
func (z *Authorizer) Authorize(ctx context.Context, a *authorize.Attributes) (authorize.Decision, string, error) {
	node, ok := Identity(a.User)
	if !ok {
		return authorize.NoOpinion, "", nil
	}
	if node == "" {
		return authorize.NoOpinion, fmt.Sprintf("unknown node for user %q", a.User.GetName()), nil // upstream's words
	}
	reason, err := z.decide(ctx, node, a)
	if reason == allowed && err == nil {
		return authorize.Allow, "", nil
	}
	if reason == silent {
		reason = ""
	}
	return authorize.NoOpinion, reason, err
}

// Values of decide other than a reason for not allowing.
const (
	allowed = ""
	silent  = "-" // no opinion, without a reason
)

// The reasons are upstream's words.
func (z *Authorizer) decide(ctx context.Context, node string, a *authorize.Attributes) (string, error) {
	if a.ResourceRequest {
		switch a.Group {
		case "":
			switch a.Resource {
			case "secrets":
				return z.read(ctx, node, secrets, a)
			case "configmaps":
				return z.read(ctx, node, configMaps, a)
			case "persistentvolumeclaims":
				if a.Subresource != "status" {
					return z.get(ctx, node, claims, a)
				}
				if a.Verb != "update" && a.Verb != "patch" {
					return "can only get/update/patch this type", nil
				}
				return z.related(ctx, node, claims, a)
			case "persistentvolumes":
				return z.get(ctx, node, volumes, a)
			case "serviceaccounts":
				if a.Verb == "get" && a.Subresource == "" {
					return z.read(ctx, node, accounts, a)
				}
				return z.token(ctx, node, a)
			case "nodes":
				return self(node, a), nil
			case "pods":
				return z.pod(ctx, node, a)
			}
		case "resource.k8s.io":
			switch a.Resource {
			case "resourceclaims":
				return z.get(ctx, node, resourceClaims, a)
			case "resourceslices":
				return z.slice(ctx, node, a)
			}
		case "storage.k8s.io":
			switch a.Resource {
			case "volumeattachments":
				return z.get(ctx, node, attachments, a)
			case "csinodes":
				return csiNode(node, a), nil
			}
		case "coordination.k8s.io":
			if a.Resource == "leases" {
				return lease(node, a), nil
			}
		case "certificates.k8s.io":
			if a.Resource == "podcertificaterequests" {
				return z.certificate(ctx, node, a)
			}
		}
	}
	if rbac.Allow(z.Rules, a) {
		return allowed, nil
	}
	return silent, nil
}

// related looks the object up in the graph.
func (z *Authorizer) related(ctx context.Context, node string, k kind, a *authorize.Attributes) (string, error) {
	if a.Name == "" {
		return "No Object name found", nil
	}
	ok, err := z.Graph.Related(ctx, node, k, a.Namespace, a.Name)
	if err != nil {
		return silent, err
	}
	if !ok {
		return fmt.Sprintf("no relationship found between node '%s' and this object", node), nil
	}
	return allowed, nil
}

func (z *Authorizer) get(ctx context.Context, node string, k kind, a *authorize.Attributes) (string, error) {
	switch {
	case a.Verb != "get":
		return "can only get individual resources of this type", nil
	case a.Subresource != "":
		return "cannot get subresource", nil
	}
	return z.related(ctx, node, k, a)
}

func (z *Authorizer) read(ctx context.Context, node string, k kind, a *authorize.Attributes) (string, error) {
	switch {
	case a.Verb != "get" && a.Verb != "list" && a.Verb != "watch":
		return "can only read resources of this type", nil
	case a.Subresource != "":
		return "cannot read subresource", nil
	case a.Namespace == "":
		return "can only read namespaced object of this type", nil
	}
	return z.related(ctx, node, k, a)
}

// token decides about tokens of service accounts, which must be those of the node's pods.
func (z *Authorizer) token(ctx context.Context, node string, a *authorize.Attributes) (string, error) {
	switch {
	case a.Verb != "create" || a.Name == "":
		return "can only create tokens for individual service accounts", nil
	case a.Subresource != "token":
		return "can only create token subresource of serviceaccount", nil
	}
	return z.related(ctx, node, accounts, a)
}

// selects reports whether a request is for what a field selector narrows to the node.
func selects(node, field string, a *authorize.Attributes) bool {
	for _, r := range a.Fields {
		if r.Field == field && r.Operator == selection.Equals && r.Value == node {
			return true
		}
	}
	return false
}

func (z *Authorizer) slice(ctx context.Context, node string, a *authorize.Attributes) (string, error) {
	if a.Subresource != "" {
		return "cannot authorize ResourceSlice subresources", nil
	}
	switch a.Verb {
	case "create": // NodeRestriction checks the object
		return allowed, nil
	case "get", "update", "patch", "delete":
		return z.related(ctx, node, slicesOfNodes, a)
	case "watch", "list", "deletecollection":
		if selects(node, resourcev1.ResourceSliceSelectorNodeName, a) {
			return allowed, nil
		}
		return "can only list/watch/deletecollection resourceslices with nodeName field selector", nil
	}
	return "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection", nil
}

func (z *Authorizer) certificate(ctx context.Context, node string, a *authorize.Attributes) (string, error) {
	if a.Subresource != "" {
		return "nodes may not access the status subresource of PodCertificateRequests", nil
	}
	switch a.Verb {
	case "create": // NodeRestriction checks the pod
		return allowed, nil
	case "get":
		return z.related(ctx, node, certificateRequests, a)
	case "list", "watch":
		if selects(node, "spec.nodeName", a) {
			return allowed, nil
		}
		return "can only list/watch podcertificaterequests with nodeName field selector", nil
	}
	return fmt.Sprintf("nodes may not %s podcertificaterequests", a.Verb), nil
}

func (z *Authorizer) pod(ctx context.Context, node string, a *authorize.Attributes) (string, error) {
	switch a.Subresource {
	case "":
		switch a.Verb {
		case "get":
			return z.get(ctx, node, pods, a)
		case "list", "watch":
			if selects(node, "spec.nodeName", a) {
				return allowed, nil
			}
			if a.Name != "" {
				return z.related(ctx, node, pods, a)
			}
			return "can only list/watch pods with spec.nodeName field selector", nil
		case "create", "delete": // NodeRestriction checks that they are its own mirror pods
			return allowed, nil
		}
	case "status":
		if a.Verb == "update" || a.Verb == "patch" {
			return allowed, nil
		}
	case "eviction":
		if a.Verb == "create" {
			return allowed, nil
		}
	}
	return silent, nil
}

// self decides about node objects. A node may read itself before its object exists, so this does not use the graph.
func self(node string, a *authorize.Attributes) string {
	switch a.Subresource {
	case "":
		switch a.Verb {
		case "create", "update", "patch": // NodeRestriction checks the name
			return allowed
		case "get", "list", "watch":
			switch a.Name {
			case node:
				return allowed
			case "":
				return fmt.Sprintf("node '%s' cannot read all nodes, only its own Node object", node)
			}
			return fmt.Sprintf("node '%s' cannot read '%s', only its own Node object", node, a.Name)
		}
	case "status":
		if a.Verb == "update" || a.Verb == "patch" {
			return allowed
		}
	}
	return silent
}

// own reports whether a node needs the verb to maintain an object of its own.
func own(verb string) bool {
	switch verb {
	case "get", "create", "update", "patch", "delete":
		return true
	}
	return false
}

func lease(node string, a *authorize.Attributes) string {
	switch {
	case !own(a.Verb):
		return "can only get, create, update, patch, or delete a node lease"
	case a.Namespace != corev1.NamespaceNodeLease:
		return fmt.Sprintf("can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	case a.Verb != "create" && a.Name != node: // NodeRestriction checks the name of a created object
		return "can only access node lease with the same name as the requesting node"
	}
	return allowed
}

func csiNode(node string, a *authorize.Attributes) string {
	switch {
	case a.Subresource == "status":
		return "CSINode status access requires CSIVolumeHealth feature"
	case a.Subresource != "":
		return "cannot authorize CSINode subresources"
	case !own(a.Verb):
		return "can only get, create, update, patch, or delete a CSINode"
	case a.Verb != "create" && a.Name != node:
		return "can only access CSINode with the same name as the requesting node"
	}
	return allowed
}
