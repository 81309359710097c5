// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/requestinfo"
)

// perServer are the kinds of which each API server writes objects about itself as soon as it serves.
var perServer = map[schema.GroupResource]bool{
	{Resource: "endpoints"}: true, {Group: "discovery.k8s.io", Resource: "endpointslices"}: true,
	{Group: "coordination.k8s.io", Resource: "leases"}: true,
}

// Reads reports whether any API server that has the same objects gives the same answer to a request, and leaves no other trace of it: the
// request gets or lists stored objects, or the documents about kinds; its client has a certificate or is in this process; and no other
// server is asked.
func Reads(s *Server, r *http.Request) bool {
	h := r.Header
	if r.Method != http.MethodGet && r.Method != http.MethodHead || streams(r) || s.opts.Audit != nil ||
		len(h["Authorization"]) > 0 || len(h["Cookie"]) > 0 || len(h["Upgrade"]) > 0 {
		return false
	}
	info := requestinfo.Parse(r)
	if info.IsResourceRequest {
		return readsStored(s, info)
	}
	path := strings.TrimSuffix(info.Path, "/")
	document := path == "/api" || path == "/apis" || path == "/version"
	for _, root := range []string{"/api/", "/apis/", "/openapi/"} {
		document = document || strings.HasPrefix(path, root)
	}
	return document && len(s.others.aggregator.Services()) == 0 && s.others.routes == nil
}

// readsStored reports whether a request gets or lists objects that this server stores.
func readsStored(s *Server, info *requestinfo.Info) bool {
	r := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	if info.Verb != "get" && info.Verb != "list" || perServer[r] || s.others.serve(info.Path) {
		return false
	}
	if part := info.Subresource; part != "" && part != "status" && part != "scale" {
		return false
	}
	k := s.registry.Kinds().Get(r)
	if k == nil {
		return false
	}
	v := k.Version(info.APIVersion)
	return v != nil && v.Derived == nil && v.Foresee == nil // a conversion webhook is another server
}
