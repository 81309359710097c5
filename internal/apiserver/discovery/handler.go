// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	types "github.com/mortise-dev/mortise/internal/apiserver/negotiate"
	"github.com/mortise-dev/mortise/internal/apiserver/peerproxy"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
	"github.com/mortise-dev/mortise/resource"
)

// Handler serves the discovery paths.
type Handler struct {
	list   func() []*resource.Descriptor
	remote func() *Remote
	beside func() *peerproxy.Servers // nil: there are no other servers of the cluster
	merged atomic.Pointer[merged]
	builds atomic.Int64

	building sync.Mutex
	current  atomic.Pointer[documents]
	address  atomic.Pointer[string]
}

// New returns a handler for the kinds that list returns. The handler calls list on each request. list must be fast and
// return the same pointers as long as nothing changes. Their order does not matter, but a new order counts as a change.
func New(list func() []*resource.Descriptor) *Handler {
	return &Handler{list: list, remote: func() *Remote { return nil }}
}

// With adds the resources of other servers. The handler calls remote on each request. It must return the same pointer
// as long as nothing changes; nil: no other servers.
func (h *Handler) With(remote func() *Remote) *Handler {
	h.remote = remote
	return h
}

// Beside adds what other servers of the cluster serve to the aggregated form of /apis, for clients that do not ask for this server's own.
// The handler calls servers on each such request. It must return the same pointer as long as nothing changes.
func (h *Handler) Beside(servers func() *peerproxy.Servers) { h.beside = servers }

// Builds returns how often the documents were made.
func (h *Handler) Builds() int64 { return h.builds.Load() }

// SetServerAddress sets the host:port in /api; by default it is the address of the request's connection.
func (h *Handler) SetServerAddress(hostPort string) { h.address.Store(&hostPort) }

// ServeHTTP serves /api, /apis and the paths below that name groups and versions.
//
// As in kube-apiserver, there are two kinds of these paths. /api, /api/v1 and the versions of built-in groups are
// routes, which allow only GET and reject media types with a router's errors. /apis, the groups, and the versions of
// custom groups are plain handlers.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	docs := h.documents()
	path := strings.TrimRight(r.URL.Path, "/")
	doc, aggregated := docs.find(path)
	switch {
	case path == "/api":
		doc = newDocument(h.legacyRoot(r))
	case r.URL.Path != path: // /apis/ has no aggregated form
		aggregated = nil
	}
	if doc == nil {
		docs.notFound(w, r, path)
		return
	}
	routed := !docs.plain(path)
	if routed && r.Method != http.MethodGet {
		status.Write(w, r, status.Route(http.StatusMethodNotAllowed, ""))
		return
	}
	if docs.ofCustom(path) { // a separate handler, which does not support CBOR
		r = r.WithContext(types.WithCBOR(r.Context(), false))
	}
	media := types.Types(types.SpeaksCBOR(r.Context()))
	f, ok := negotiate(r, media, aggregated != nil)
	offered := strings.Join(media, ", ")
	switch {
	case routed && !f.aggregated && !types.Routed(r.Header.Get("Accept"), media):
		status.Write(w, r, status.Route(http.StatusNotAcceptable, "406: Not Acceptable\n\nAvailable representations: "+offered))
		return
	case !ok:
		status.Write(w, r, status.Media(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
			"only the following media types are accepted: "+offered))
		return
	}
	if f.aggregated {
		if h.beside != nil && path == "/apis" && !f.own {
			aggregated = h.together(aggregated, h.beside())
		}
		doc = aggregated
		etag, err := doc.etag()
		if err != nil {
			status.Write(w, r, err)
			return
		}
		w.Header().Set("ETag", etag)
		w.Header().Set("Vary", "Accept")
		w.Header().Set("Cache-Control", "public")
		if docs.warning != "" && path == "/apis" {
			w.Header().Set("Warning", docs.warning)
		}
		if r.Header.Get("If-None-Match") == etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	body, err := doc.encode(f)
	if err != nil {
		status.Write(w, r, err)
		return
	}
	if len(body) > zipFrom && types.AcceptsGzip(r) {
		if body, err = doc.compress(f, body); err != nil {
			status.Write(w, r, err)
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Add("Vary", "Accept-Encoding")
	}
	w.Header().Set("Content-Type", f.contentType())
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(http.StatusOK)
	// Only the client's connection can fail here, and the client sees that itself.
	_, _ = w.Write(body)
}

// documents returns the documents of the current list, and rebuilds them if it has changed.
func (h *Handler) documents() *documents {
	list, remote := h.list(), h.remote()
	if d := h.current.Load(); d != nil && d.remote == remote && slices.Equal(d.from, list) {
		return d
	}
	h.building.Lock()
	defer h.building.Unlock()
	list, remote = h.list(), h.remote()
	if d := h.current.Load(); d != nil && d.remote == remote && slices.Equal(d.from, list) {
		return d
	}
	h.builds.Add(1)
	d := build(list, remote)
	h.current.Store(d)
	return d
}

// find returns the path's document, and its aggregated form if there is one.
func (d *documents) find(path string) (doc, aggregated *document) {
	switch path {
	case "/api":
		return nil, d.core
	case "/apis":
		return d.groups, d.aggregated
	}
	if v, ok := strings.CutPrefix(path, "/api/"); ok {
		if strings.Contains(v, "/") {
			return nil, nil
		}
		return d.version[v], nil
	}
	name, ok := strings.CutPrefix(path, "/apis/")
	if !ok {
		return nil, nil
	}
	if strings.Contains(name, "/") {
		return d.version[name], nil
	}
	return d.group[name], nil
}

// plain reports whether a path with a document is no route.
func (d *documents) plain(path string) bool {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	switch {
	case parts[0] != "apis":
		return false
	case len(parts) < 3:
		return true
	}
	return d.custom[parts[1]]
}

// ofCustom reports whether the path is that of a version of a group whose kinds came at run time.
func (d *documents) ofCustom(path string) bool {
	group, _, ok := strings.Cut(strings.TrimPrefix(path, "/apis/"), "/")
	return ok && d.custom[group]
}

// notFound reports a missing version of a built-in group with a Status, and everything else as plain text.
func (d *documents) notFound(w http.ResponseWriter, r *http.Request, path string) {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	builtIn := parts[0] == "api" || len(parts) > 2 && d.group[parts[1]] != nil && !d.custom[parts[1]]
	if builtIn {
		status.Write(w, r, status.Route(http.StatusNotFound, ""))
		return
	}
	http.Error(w, "404 page not found", http.StatusNotFound)
}

func (h *Handler) legacyRoot(r *http.Request) *metav1.APIVersions {
	address := r.Host
	if a := h.address.Load(); a != nil {
		address = *a
	} else if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		address = local.String()
	}
	return &metav1.APIVersions{
		TypeMeta:                   metav1.TypeMeta{Kind: "APIVersions"},
		Versions:                   []string{"v1"},
		ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0", ServerAddress: address}},
	}
}
