// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"

	"github.com/go-jose/go-jose/v4"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/internal/apiserver/authenticate"
	"github.com/mortise-dev/mortise/internal/apiserver/openapi"
)

// paths is the dispatch at the pipeline's end: resources to their verbs, everything else by its path.
func (s *Server) paths() http.Handler {
	found := s.discovery()
	documents := openapi.New(s.Kinds, s.opts.Log)
	mux := map[string]http.Handler{
		"/openapi/v2": documents, "/openapi/v3": documents, "/openapi/v3/": documents,
		"/version": http.HandlerFunc(s.version), "/version/": http.HandlerFunc(s.version),
		"/metrics":             s.metrics.handler(),
		"/debug/pprof/":        http.HandlerFunc(pprof.Index),
		"/debug/pprof/cmdline": http.HandlerFunc(pprof.Cmdline),
		"/debug/pprof/profile": http.HandlerFunc(pprof.Profile),
		"/debug/pprof/symbol":  http.HandlerFunc(pprof.Symbol),
		"/debug/pprof/trace":   http.HandlerFunc(pprof.Trace),
	}
	for _, root := range []string{"/healthz", "/livez", "/readyz"} {
		mux[root], mux[root+"/"] = http.HandlerFunc(s.health), http.HandlerFunc(s.health)
	}
	if s.tokens != nil {
		mux["/.well-known/openid-configuration"] = http.HandlerFunc(s.issuer)
		mux["/openid/v1/jwks"] = http.HandlerFunc(s.keys)
	}
	for p, h := range s.opts.Paths {
		mux[p] = h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, _ := request.RequestInfoFrom(r.Context())
		if info.IsResourceRequest {
			if !s.api.HasGroup(info.APIGroup) {
				http.Error(w, "404 page not found", http.StatusNotFound)
				return
			}
			s.api.Serve(w, r, info)
			return
		}
		path := r.URL.Path
		if path == "/api" || path == "/apis" || strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/apis/") {
			found.ServeHTTP(w, r)
			return
		}
		if h := lookup(mux, path); h != nil {
			h.ServeHTTP(w, r)
			return
		}
		if path == "/" || path == "/index.html" {
			s.index(w, mux)
			return
		}
		http.Error(w, "404 page not found", http.StatusNotFound)
	})
}

// lookup finds the handler of a path: its own, or that of the longest path with a slash at its end above it.
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

// index lists the paths there are.
func (s *Server) index(w http.ResponseWriter, mux map[string]http.Handler) {
	paths := []string{"/api", "/apis"}
	seen := map[string]bool{}
	for _, d := range s.Kinds() {
		for _, v := range d.Versions {
			if v.Unserved {
				continue
			}
			add := []string{"/apis/" + d.Group, "/apis/" + d.Group + "/" + v.Name}
			if d.Group == "" {
				add = []string{"/api/" + v.Name}
			}
			for _, p := range add {
				if !seen[p] {
					seen[p] = true
					paths = append(paths, p)
				}
			}
		}
	}
	for p := range mux {
		if p = strings.TrimSuffix(p, "/"); !seen[p] && !strings.HasPrefix(p, "/debug/pprof/") {
			seen[p] = true
			paths = append(paths, p)
		}
	}
	slices.Sort(paths)
	writeJSON(w, map[string][]string{"paths": paths})
}

func writeJSON(w http.ResponseWriter, v any) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b) // a client that went away needs no answer
}

func (s *Server) version(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.opts.Version) }

// issuer and keys are what those need who verify service-account tokens themselves.
func (s *Server) issuer(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, map[string]any{
		"issuer": authenticate.Issuer, "jwks_uri": authenticate.Issuer + "/openid/v1/jwks", "response_types_supported": []string{"id_token"},
		"subject_types_supported": []string{"public"}, "id_token_signing_alg_values_supported": []string{"ES256"},
	})
}

func (s *Server) keys(w http.ResponseWriter, _ *http.Request) {
	pub := &s.tokens.Key.PublicKey
	id, err := authenticate.KeyID(pub)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	writeJSON(w, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: pub, KeyID: id, Algorithm: "ES256", Use: "sig"}}})
}

// check is one part of the server's health.
type check struct {
	name string
	run  func() error
}

func (s *Server) checks(root string) []check {
	ok := func() error { return nil }
	cs := []check{{"ping", ok}, {"log", ok}, {"etcd", s.storeHealth}}
	if root == "/readyz" {
		cs = append(cs, check{"informer-sync", ok}, check{"shutdown", func() error {
			if s.lifetime.Context.Err() != nil {
				return fmt.Errorf("process is shutting down")
			}
			return nil
		}})
	}
	return cs
}

func (s *Server) storeHealth() error {
	_, _, err := s.opts.Store.Get(s.lifetime.Context, "/registry/health")
	return err
}

// health answers /healthz, /livez and /readyz, and one check below them.
func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	root, one, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	checks := s.checks("/" + root)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-cache, private")
	if one != "" {
		i := slices.IndexFunc(checks, func(c check) bool { return c.name == one })
		if i < 0 {
			http.Error(w, "404 page not found", http.StatusNotFound)
			return
		}
		checks = checks[i : i+1]
	}
	q := r.URL.Query()
	exclude := q["exclude"]
	var out bytes.Buffer
	failed := false
	for _, c := range checks {
		if i := slices.Index(exclude, c.name); i >= 0 {
			exclude = slices.Delete(slices.Clone(exclude), i, i+1)
			fmt.Fprintf(&out, "[+]%s excluded: ok\n", c.name)
			continue
		}
		if err := c.run(); err != nil {
			failed = true
			fmt.Fprintf(&out, "[-]%s failed: reason withheld\n", c.name)
			s.opts.Log.WarnContext(r.Context(), "health check", "name", c.name, "error", err)
			continue
		}
		fmt.Fprintf(&out, "[+]%s ok\n", c.name)
	}
	if len(exclude) > 0 {
		fmt.Fprintf(&out, "warn: some health checks cannot be excluded: no matches for %s\n", quoted(exclude))
	}
	if failed {
		http.Error(w, out.String()+root+" check failed", http.StatusInternalServerError)
		return
	}
	if _, verbose := q["verbose"]; !verbose || one != "" {
		_, _ = w.Write([]byte("ok"))
		return
	}
	fmt.Fprintf(&out, "%s check passed\n", root)
	_, _ = w.Write(out.Bytes())
}

func quoted(names []string) string {
	qs := make([]string, len(names))
	for i, n := range names {
		qs[i] = fmt.Sprintf("%q", n)
	}
	return strings.Join(qs, ", ")
}
