// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/internal/apiserver/negotiate"
	"github.com/mortise-dev/mortise/internal/apiserver/openapi"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
	"github.com/mortise-dev/mortise/resource"
)

// paths returns the handler at the end of the pipeline: it dispatches resources to their verbs, and other requests by
// path.
func (s *Server) paths() http.Handler {
	mux := s.mux()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, _ := request.RequestInfoFrom(r.Context())
		if s.delegated(w, r, info) || elsewhere(s, w, r, info) {
			return
		}
		if info.IsResourceRequest {
			if !s.registry.Kinds().HasGroup(info.APIGroup) || strings.HasPrefix(r.URL.Path, "//") || info.APIPrefix == "apis" &&
				info.APIGroup == "" {
				http.Error(w, "404 page not found", http.StatusNotFound)
				return
			}
			s.api.Serve(w, r, info, recordOf(r.Context()))
			return
		}
		path := r.URL.Path
		if path == "/api" || path == "/apis" || strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/apis/") {
			s.documents.ServeHTTP(w, r)
			return
		}
		if h := lookup(mux, path); h != nil {
			h.ServeHTTP(w, r)
			return
		}
		if path == "/" || path == "/index.html" {
			writeJSON(w, map[string][]string{"paths": listed(s.Kinds(), mux)})
			return
		}
		http.Error(w, "404 page not found", http.StatusNotFound)
	})
}

// mux returns the handlers of the paths that are neither resources nor discovery. A path that ends in a slash includes
// all paths below it.
func (s *Server) mux() map[string]http.Handler {
	documents := openapi.New(s.Kinds, s.opts.Log).With(s.learner.OpenAPI)
	flags := http.HandlerFunc(debugFlags)
	mux := map[string]http.Handler{
		"/openapi/v2": documents, "/openapi/v3": documents, "/openapi/v3/": documents,
		"/metrics": http.HandlerFunc(s.metrics.Metrics), "/metrics/slis": http.HandlerFunc(s.metrics.SLIs),
		"/debug/pprof":         http.RedirectHandler("/debug/pprof/", http.StatusFound),
		"/debug/pprof/":        http.HandlerFunc(pprof.Index),
		"/debug/pprof/profile": http.HandlerFunc(pprof.Profile),
		"/debug/pprof/symbol":  http.HandlerFunc(pprof.Symbol),
		"/debug/pprof/trace":   http.HandlerFunc(pprof.Trace),
		"/debug/flags":         flags, "/debug/flags/": flags,
		backupPath:     backUp(s.opts.Store),
		extensionsPath: showExtensions(s.opts.Ledger, func() objectReader { return s.registry.Backend() }),
	}
	if s.flow != nil {
		for p, dump := range s.flow.Dumps() {
			mux[p] = dump
		}
	}
	s.explaining(mux)
	routes(mux, "/version", negotiate.JSON, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.opts.Version) })
	discoverKeys(mux, s.access.authn.Accounts(), s.opts.Log)
	for _, p := range s.health.Paths() {
		mux[p] = s.health
	}
	pages := s.pages(mux)
	mux["/statusz"], mux["/flagz"], mux["/configz"] = http.HandlerFunc(pages.Statusz), http.HandlerFunc(pages.Flagz),
		http.HandlerFunc(pages.Configz)
	for p, h := range s.opts.Paths {
		mux[p] = h
	}
	return mux
}

const mediaKeySet = "application/jwk-set+json"

// routes adds a GET-only route that produces one media type, with and without a slash at the end of its path.
func routes(mux map[string]http.Handler, path, produces string, serve http.HandlerFunc) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.TrimRight(r.URL.Path, "/") != path:
			status.Write(w, r, status.Route(http.StatusNotFound, ""))
		case r.Method != http.MethodGet:
			status.Write(w, r, status.Route(http.StatusMethodNotAllowed, ""))
		case !negotiate.Routed(r.Header.Get("Accept"), []string{produces}):
			status.Write(w, r, status.Route(http.StatusNotAcceptable, "406: Not Acceptable\n\nAvailable representations: "+produces))
		default:
			serve(w, r)
		}
	})
	mux[path], mux[path+"/"] = h, h
}

// lookup returns the handler of a path, or of the longest parent path that ends in a slash.
func lookup(mux map[string]http.Handler, path string) http.Handler {
	if h := mux[path]; h != nil {
		return h
	}
	for i := len(path) - 1; i > 0; i-- {
		if path[i] == '/' {
			if h := mux[path[:i+1]]; h != nil {
				return h
			}
		}
	}
	return nil
}

// listed returns all paths except those for debugging, backups, and /configz, which kube-apiserver does not list.
func listed(kinds []*resource.Descriptor, mux map[string]http.Handler) []string {
	paths := []string{"/api", "/apis", "/apis/"}
	for _, d := range kinds {
		for _, v := range d.Versions {
			switch {
			case v.Unserved:
			case d.Group == "":
				paths = append(paths, "/api/"+v.Name)
			default:
				paths = append(paths, "/apis/"+d.Group, "/apis/"+d.Group+"/"+v.Name)
			}
		}
	}
	for p := range mux {
		if (!strings.HasSuffix(p, "/") || mux[strings.TrimSuffix(p, "/")] == nil || p == "/openapi/v3/") && !strings.HasPrefix(p, "/debug/") &&
			p != "/configz" && p != backupPath {
			paths = append(paths, p)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// writeJSON writes a value as indented JSON.
func writeJSON(w http.ResponseWriter, v any) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", negotiate.JSON)
	_, _ = w.Write(b) // the client may have left
}
