// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/flowcontrol"
	"github.com/mortise-dev/mortise/internal/apiserver/requestinfo"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
)

// elsewhere forwards a request for a resource that another server of the cluster serves and this one does not. False: this server
// answers.
//
// A definition that was written at another server a moment ago may not have arrived here. So before a resource counts as unknown, the
// server catches up with the store.
func elsewhere(s *Server, w http.ResponseWriter, r *http.Request, info *requestinfo.Info) bool {
	peers := s.opts.Aggregation.Peers
	if peers == nil || !info.IsResourceRequest {
		return false
	}
	of := schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
	if hasResource(s, of) {
		return false
	}
	if err := catchUp(r.Context(), s); err != nil {
		status.Write(w, r, err)
		return true
	}
	if hasResource(s, of) {
		return false
	}
	if s.others.serve(r.URL.Path) {
		return s.delegated(w, r, info)
	}
	flowcontrol.Began(r.Context()) // a slow server must not use this server's seats
	return peers.Serve(w, r, of, s.lifetime.Context)
}

// hasResource reports whether the server serves a resource itself.
func hasResource(s *Server, of schema.GroupVersionResource) bool {
	k := s.registry.Kinds().Get(of.GroupResource())
	if k == nil {
		return false
	}
	v := k.Version(of.Version)
	return v != nil && !v.Unserved
}

// catchUp returns when the server knows all definitions and APIServices that were in the store when it was called.
func catchUp(ctx context.Context, s *Server) error {
	_, revision, err := s.opts.Store.Get(ctx, "/registry/apiextensions.k8s.io")
	if err != nil {
		return err
	}
	s.opts.Store.Bookmark()
	s.feed.Wait(ctx, definitions, revision)
	s.feed.Wait(ctx, apiServices, revision)
	return ctx.Err()
}

var apiServices = schema.GroupResource{Group: "apiregistration.k8s.io", Resource: "apiservices"}

// SharedVersions returns the group-versions that all servers know from the store: those of definitions and of aggregated API servers. It
// first catches up with the store, as far as ctx allows.
func SharedVersions(ctx context.Context, s *Server) map[schema.GroupVersion]bool {
	_ = catchUp(ctx, s) // without the store, they are those that are known
	all := map[schema.GroupVersion]bool{}
	for _, d := range s.crds.Descriptors() {
		for i := range d.Versions {
			all[schema.GroupVersion{Group: d.Group, Version: d.Versions[i].Name}] = true
		}
	}
	if remote := s.learner.Discovery(); remote != nil {
		for i := range remote.Versions {
			all[schema.GroupVersion{Group: remote.Versions[i].Group, Version: remote.Versions[i].Version}] = true
		}
	}
	return all
}
