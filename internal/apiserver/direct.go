// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Direct reads what a server serves without requests and their authorization, for parts of the server's process
// (docs/decisions/0018). It is safe for concurrent use.
type Direct struct{ server *Server }

// NewDirect returns what reads from a server.
func NewDirect(s *Server) Direct { return Direct{s} }

// Scale returns what a request for the subresource scale of an object would. Nil: only a request tells, as where the object is a custom
// one, is absent, or may be hidden, or where another server serves it.
func (d Direct) Scale(ctx context.Context, of schema.GroupVersionResource, namespace, name string) *autoscalingv1.Scale {
	s := d.server
	k := s.registry.Kinds().Get(of.GroupResource())
	if k == nil || s.initializes || d.Delegates(of.GroupVersion()) {
		return nil
	}
	sub := k.Subresource("scale")
	if sub == nil || sub.View == nil {
		return nil
	}
	hub, err := s.registry.Backend().Get(ctx, of.GroupResource(), namespace, name)
	if err != nil {
		return nil
	}
	if _, custom := hub.(*unstructured.Unstructured); custom {
		return nil
	}
	view, err := sub.View.Get(hub)
	if err != nil {
		return nil
	}
	scale, _ := view.(*autoscalingv1.Scale)
	return scale
}

// Delegates reports whether other servers are asked for a group-version, whether they answer or not.
func (d Direct) Delegates(gv schema.GroupVersion) bool {
	return d.server.others.serve("/apis/" + gv.Group + "/" + gv.Version)
}
