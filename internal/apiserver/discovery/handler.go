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

	"github.com/mortise-dev/mortise/resource"
)

// Handler answers the discovery paths.
type Handler struct {
	list func() []*resource.Descriptor

	building sync.Mutex
	current  atomic.Pointer[documents]
	address  atomic.Pointer[string]
}

// New returns a handler for the kinds that list returns. list is called on each request, must be quick, and must return
// the same pointers as long as nothing changes; their order does not matter, but a new order counts as a change.
func New(list func() []*resource.Descriptor) *Handler { return &Handler{list: list} }

// SetServerAddress sets the host:port that /api tells clients; unset, it is where the request came in.
func (h *Handler) SetServerAddress(hostPort string) { h.address.Store(&hostPort) }

// ServeHTTP answers GET on /api, /apis and the paths below that name groups and versions.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	docs, err := h.documents()
	if err != nil {
		writeStatus(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, err.Error())
		return
	}
	path := strings.TrimSuffix(r.URL.Path, "/")
	doc, aggregated := docs.find(path)
	if path == "/api" {
		doc = newDocument(h.legacyRoot(r))
	}
	if doc == nil {
		docs.notFound(w, path)
		return
	}
	if r.Method != http.MethodGet {
		writeStatus(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
			"the server does not allow this method on the requested resource")
		return
	}
	f, ok := negotiate(r, aggregated != nil)
	if !ok {
		writeStatus(w, http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
			"only the following media types are accepted: "+strings.Join([]string{mediaJSON, mediaYAML, mediaProtobuf}, ", "))
		return
	}
	if f.aggregated {
		doc = aggregated
		w.Header().Set("ETag", doc.etag)
		w.Header().Set("Vary", "Accept")
		w.Header().Set("Cache-Control", "public")
		if r.Header.Get("If-None-Match") == doc.etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	body, err := doc.encode(f)
	if err != nil {
		writeStatus(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, err.Error())
		return
	}
	w.Header().Set("Content-Type", f.contentType())
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(http.StatusOK)
	// The client's connection is the only thing that can fail here, and it is the client's to notice.
	_, _ = w.Write(body)
}

// documents returns those of the present list, made anew if it has changed.
func (h *Handler) documents() (*documents, error) {
	list := h.list()
	if d := h.current.Load(); d != nil && slices.Equal(d.from, list) {
		return d, nil
	}
	h.building.Lock()
	defer h.building.Unlock()
	list = h.list()
	if d := h.current.Load(); d != nil && slices.Equal(d.from, list) {
		return d, nil
	}
	d, err := build(list)
	if err != nil {
		return nil, err
	}
	h.current.Store(d)
	return d, nil
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

// notFound tells of a version that a built-in group does not have with a Status, of all else as plain text.
func (d *documents) notFound(w http.ResponseWriter, path string) {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	builtIn := len(parts) > 2 && parts[0] == "apis" && d.group[parts[1]] != nil && !d.custom[parts[1]]
	if builtIn {
		writeStatus(w, http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(http.StatusNotFound)
	_, _ = w.Write([]byte("404 page not found\n"))
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

func writeStatus(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	s := &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	}
	if code == http.StatusNotFound || code == http.StatusMethodNotAllowed {
		s.Details = &metav1.StatusDetails{}
	}
	body, err := newDocument(s).json()
	if err != nil {
		http.Error(w, message, code)
		return
	}
	w.Header().Set("Content-Type", mediaJSON)
	w.WriteHeader(code)
	_, _ = w.Write(body)
}
