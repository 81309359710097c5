// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/mortise-dev/mortise/internal/apiserver/health"
	"github.com/mortise-dev/mortise/internal/apiserver/meter"
	"github.com/mortise-dev/mortise/internal/apiserver/registry"
	"github.com/mortise-dev/mortise/internal/apiserver/requestinfo"
)

// observe counts an answered request. As upstream, it counts requests that a verb of a kind answered, and those of a
// few paths. It does not count requests that were rejected before, or that are not served.
func observe(m *meter.Meter, rec *requestRecord, took time.Duration) {
	k, ok := label(rec)
	if !ok {
		return
	}
	m.Request(k, took, rec.answer.bytes)
	if rec.deprecated {
		m.Deprecated(k.Group, k.Version, k.Resource, k.Subresource)
	}
}

// Routed records that a kind and a verb were found for the request.
func (c *requestRecord) Routed(deprecated bool) {
	c.routed, c.deprecated = true, deprecated
	if c.info.Verb == "watch" || longRunning(c.info) {
		c.left = c.server.metrics.Long(resourceLabel(c.info, c.request))
	}
}

// label returns the labels by which a request is counted.
func label(rec *requestRecord) (k meter.Request, ok bool) {
	if rec.routed {
		k = resourceLabel(rec.info, rec.request)
	} else if k, ok = pathLabel(rec); !ok {
		return k, false
	}
	k.Code = rec.answer.status()
	return k, true
}

// resourceLabel returns the labels of a request for a resource.
func resourceLabel(info *requestinfo.Info, r *http.Request) meter.Request {
	k := meter.Request{
		Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource, Subresource: info.Subresource,
		Scope: "cluster", Component: meter.Component,
	}
	switch { // by the path, because a field selector may give the request a name too
	case len(info.Parts) > 1 || info.Verb == "create":
		k.Scope = "resource"
	case info.Namespace != "":
		k.Scope = "namespace"
	}
	switch {
	case info.Verb == "watch" || r.Method == http.MethodGet && asksWatch(r.URL):
		k.Verb = "WATCH"
	case longRunning(info):
		k.Verb = "CONNECT"
	case r.Method == http.MethodPatch && r.Header.Get("Content-Type") == "application/apply-patch+yaml":
		k.Verb = "APPLY"
	default:
		k.Verb = method(r, k.Scope)
	}
	if strings.Contains(r.URL.RawQuery, "dryRun") {
		asked := r.URL.Query()["dryRun"]
		if len(metav1validation.ValidateDryRun(nil, asked)) > 0 {
			k.DryRun = "invalid"
		} else {
			slices.Sort(asked)
			k.DryRun = strings.Join(slices.Compact(asked), ",")
		}
	}
	return k
}

// droppedLabel returns the labels of a request that was rejected before its kind was looked up. Invented resources get
// none.
func droppedLabel(kinds *registry.Kinds, info *requestinfo.Info, r *http.Request) meter.Request {
	k := kinds.Get(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource})
	if !info.IsResourceRequest || k == nil || k.Version(info.APIVersion) == nil || info.Subresource != "" &&
		k.Subresource(info.Subresource) == nil {
		return meter.Request{Verb: method(r, ""), Component: meter.Component}
	}
	return resourceLabel(info, r)
}

// asksWatch reports whether the query asks for a watch, be it of a path that gives none.
func asksWatch(u *url.URL) bool {
	if !strings.Contains(u.RawQuery, "watch") {
		return false
	}
	v := u.Query()["watch"]
	return len(v) > 0 && v[0] != "0" && !strings.EqualFold(v[0], "false")
}

func method(r *http.Request, scope string) string {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		if scope == "cluster" || scope == "namespace" {
			return "LIST"
		}
		return "GET"
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return r.Method
	}
	return "other"
}

// pathLabel returns the labels of a counted path.
func pathLabel(rec *requestRecord) (meter.Request, bool) {
	r, w := rec.request, &rec.answer
	k := meter.Request{Verb: method(r, "")}
	switch path := r.URL.Path; path {
	case "/healthz", "/livez", "/readyz":
		k.Subresource = path
	case "/openapi/v3":
		k.Subresource = "openapi/v3"
	case "/flagz", "/statusz":
		k.Component, k.Resource = meter.Component, path[1:]
		if _, v, ok := strings.Cut(w.Header().Get("Content-Type"), ";g=config.k8s.io;v="); ok {
			k.Group = "config.k8s.io"
			k.Version, _, _ = strings.Cut(v, ";")
		}
		rec.deprecated = k.Version == "v1alpha1"
	case "/api", "/apis":
		k.Component, k.Subresource = meter.Component, path[1:]
		return k, strings.HasSuffix(w.Header().Get("Content-Type"), "as=APIGroupDiscoveryList") || w.code == http.StatusNotModified
	default:
		k.Subresource = "openapi/v3/"
		return k, strings.HasPrefix(path, "/openapi/v3/") && w.status() != http.StatusNotFound
	}
	return k, true
}

// sources returns the sources that metrics read when they are collected.
func (s *Server) sources() meter.Sources {
	return meter.Sources{
		Version:  s.opts.Version,
		Inflight: s.inflight,
		Objects: func(tell func(r schema.GroupResource, n int64)) {
			s.kinds.countObjects(s.lifetime.Context, s.registry.Reader(), tell)
		},
		Storage: func() int64 { return s.opts.Store.Size().Disk },
		Watches: s.kinds.countWatched,
		Health:  func() []health.Result { return s.health.Results() },

		Libraries: legacyregistry.DefaultGatherer,
	}
}
