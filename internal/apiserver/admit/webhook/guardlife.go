// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/matching"
)

// To recover, a pod needs a node with a heartbeat, a controller manager and a scheduler that lead, and may itself need to
// lead before it answers. All of them show this by leases and by the node's status. The guard admits these writes from the
// component whose heartbeat they are.

// Where signs of life are kept.
const (
	nodeLeases         = "kube-node-lease"
	controlPlaneLeases = "kube-system"
	nodeUsers          = "system:node:"
	accountUsers       = "system:serviceaccount:"
)

// signOfLife says of whose life the request's object is a sign that pods need to come back; empty: of none.
func signOfLife(q *matching.Request) string {
	if q.User == nil || q.Operation == admit.Delete || q.Operation == admit.Connect {
		return ""
	}
	name, node := q.User.GetName(), strings.TrimPrefix(q.User.GetName(), nodeUsers)
	itself := node != name && node == nameOf(q)
	switch what := q.Resource().GroupResource(); {
	case what == schema.GroupResource{Resource: "nodes"}:
		return said(itself && q.Subresource == "status", "the heartbeat of node "+node)
	case what != schema.GroupResource{Group: coordinationv1.GroupName, Resource: "leases"}:
		return ""
	case q.Namespace == nodeLeases:
		return said(itself, "the heartbeat of node "+node)
	case q.Namespace == controlPlaneLeases:
		return said(strings.HasPrefix(name, "system:") && node == name && !strings.HasPrefix(name, accountUsers) && name != "system:anonymous",
			"a lease of the control plane's "+name)
	}
	return ""
}

// nameOf is the name of the request's object, which a create need not say.
func nameOf(q *matching.Request) string {
	if q.Name == "" && q.Object != nil {
		return q.Object.GetName()
	}
	return q.Name
}

// leads reports whether the request's object is a lease that a pod of the service takes or keeps: client-go's candidates call themselves by
// their pod's name, and a mark behind an underscore.
func (g *guarded) leads(ctx context.Context, q *matching.Request) bool {
	l, ok := q.Object.(*coordinationv1.Lease)
	if !ok || l.Spec.HolderIdentity == nil {
		return false
	}
	holder, _, _ := strings.Cut(*l.Spec.HolderIdentity, "_")
	obj, err := g.backend.Get(ctx, schema.GroupResource{Resource: "pods"}, g.namespace, holder)
	return err == nil && g.selects(obj)
}

// pulls reports whether an account has its pods' images pulled with a secret, or lets them use it.
func (g *guarded) pulls(ctx context.Context, account, secret string) bool {
	obj, err := g.backend.Get(ctx, schema.GroupResource{Resource: "serviceaccounts"}, g.namespace, account)
	if err != nil {
		return false
	}
	sa, ok := obj.(*corev1.ServiceAccount)
	if !ok {
		return false
	}
	for _, r := range sa.ImagePullSecrets {
		if r.Name == secret {
			return true
		}
	}
	for _, r := range sa.Secrets {
		if r.Name == secret {
			return true
		}
	}
	return false
}
