// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/munnerz/goautoneg"

	"github.com/mortise-dev/mortise/internal/apiserver/crd"
	"github.com/mortise-dev/mortise/resource"
)

// Handler serves /openapi/v2, /openapi/v3 and the paths below.
type Handler struct {
	list   func() []*resource.Descriptor
	remote func() *Remote
	log    *slog.Logger
	now    func() time.Time
	static func() (*static, error)

	building sync.Mutex
	current  atomic.Pointer[documents]
}

// New returns a handler for the kinds that list returns, which must return the same pointers as long as nothing changes.
func New(list func() []*resource.Descriptor, log *slog.Logger) *Handler {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Handler{list: list, remote: func() *Remote { return nil }, log: log, now: time.Now, static: sync.OnceValues(readStatic)}
}

// With adds the documents of other servers. The handler calls remote on each request. It must return the same pointer
// as long as nothing changes; nil: no other servers.
func (h *Handler) With(remote func() *Remote) *Handler {
	h.remote = remote
	return h
}

// documents are all documents for one list of descriptors.
type documents struct {
	from   []*resource.Descriptor // sorted by address, for comparison
	remote *Remote
	since  time.Time
	v3     map[string]*document
	index  func() ([]byte, error)
	v2     *document
	parts  map[string]*part // additions to the default documents of v2, by path
}

// part is the addition to v2 of the custom kinds of one group version, or of a preview. It is reused as long as they
// stay the same, so that a new definition costs no more if there are many.
type part struct {
	kinds []*resource.Descriptor
	v3    *document
	v2    func() (*addition, error)
}

// documents returns the documents of the current list.
func (h *Handler) documents() (*documents, error) {
	list, remote := h.list(), h.remote()
	if d := h.current.Load(); d != nil && d.remote == remote && sameKinds(d.from, list) {
		return d, nil
	}
	h.building.Lock()
	defer h.building.Unlock()
	list, remote = h.list(), h.remote()
	if d := h.current.Load(); d != nil && d.remote == remote && sameKinds(d.from, list) {
		return d, nil
	}
	s, err := h.static()
	if err != nil {
		return nil, err
	}
	d := assemble(s, list, remote, h.now(), h.current.Load(), h.log)
	h.current.Store(d)
	return d, nil
}

// remotePart is the name of the part of other servers. It sorts after all paths.
const remotePart = "~"

// sameKinds compares two lists regardless of their order.
func sameKinds(a, b []*resource.Descriptor) bool {
	if len(a) != len(b) {
		return false
	}
	if slices.Equal(a, b) {
		return true
	}
	in := make(map[*resource.Descriptor]bool, len(a))
	for _, d := range a {
		in[d] = true
	}
	return !slices.ContainsFunc(b, func(d *resource.Descriptor) bool { return !in[d] })
}

// assemble makes the documents of a list. It reuses the unchanged parts of the previous documents, if any.
func assemble(s *static, list []*resource.Descriptor, remote *Remote, now time.Time, before *documents, log *slog.Logger) *documents {
	if before != nil && now.Unix() <= before.since.Unix() {
		// Clients ask for newer documents by the second: no two states may share one.
		now = before.since.Add(time.Second)
	}
	d := &documents{from: slices.Clone(list), remote: remote, since: now, v3: map[string]*document{}, parts: map[string]*part{}}
	served, custom := map[string]bool{}, map[string][]*resource.Descriptor{}
	for _, k := range list {
		isCustom := crd.IsCustom(k)
		for _, v := range k.Versions {
			p := "apis/" + k.Group + "/" + v.Name
			switch {
			case v.Unserved || k.Hidden:
			case isCustom:
				custom[p] = append(custom[p], k)
			default:
				served[p], served["apis/"+k.Group] = true, true
			}
		}
	}
	for p, e := range s.V3 {
		if served[p] || !strings.HasPrefix(p, "apis/") {
			d.v3[p] = embedded(e.File, e.Hash)
		}
	}
	for p, file := range s.V2Parts {
		if served[p] {
			d.parts[p] = &part{v2: sync.OnceValues(func() (*addition, error) { return preview(file) })}
		}
	}
	for p, kinds := range custom {
		if d.parts[p] != nil {
			continue
		}
		byName(kinds)
		if before != nil && before.parts[p] != nil && slices.Equal(before.parts[p].kinds, kinds) {
			d.parts[p] = before.parts[p]
		} else {
			version := path.Base(p)
			d.parts[p] = &part{
				kinds: kinds, v3: customDocument(s, version, kinds),
				v2: sync.OnceValues(func() (*addition, error) { return additions(s, version, kinds) }),
			}
		}
		if d.v3[p] == nil {
			d.v3[p] = d.parts[p].v3
		}
	}
	if remote != nil && len(remote.V2) > 0 {
		if before != nil && before.remote == remote && before.parts[remotePart] != nil {
			d.parts[remotePart] = before.parts[remotePart]
		} else {
			taken := func(p string) bool { return served[p] || len(custom[p]) > 0 }
			d.parts[remotePart] = &part{v2: sync.OnceValues(func() (*addition, error) { return remoteAdditions(s, remote, taken, log) })}
		}
	}
	d.v2 = embedded(s.V2.File, s.V2.Hash)
	if len(d.parts) > 0 {
		d.v2 = mergedV2(s, d.parts)
	}
	d.index = sync.OnceValues(d.makeIndex)
	return d
}

func byName(kinds []*resource.Descriptor) {
	slices.SortFunc(kinds, func(a, b *resource.Descriptor) int {
		return strings.Compare(a.Group+"/"+a.Resource, b.Group+"/"+b.Resource)
	})
}

// makeIndex returns the JSON of /openapi/v3.
func (d *documents) makeIndex() ([]byte, error) {
	type entry struct {
		ServerRelativeURL string `json:"serverRelativeURL"`
	}
	out := struct {
		Paths map[string]entry `json:"paths"`
	}{map[string]entry{}}
	for p, doc := range d.v3 {
		hash, err := doc.hash()
		if err != nil {
			return nil, err
		}
		out.Paths[p] = entry{relative(p, hash)}
	}
	if d.remote != nil {
		for p, doc := range d.remote.V3 {
			if doc.Hash == "" {
				out.Paths[p] = entry{"/openapi/v3/" + p}
			} else {
				out.Paths[p] = entry{relative(p, doc.Hash)}
			}
		}
	}
	return json.Marshal(out)
}

func relative(p, hash string) string { return "/openapi/v3/" + p + "?hash=" + url.QueryEscape(hash) }

// ServeHTTP serves all methods alike, as in kube-apiserver.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	docs, err := h.documents()
	if err == nil && docs.remote != nil {
		if name, ok := strings.CutPrefix(r.URL.Path, "/openapi/v3/"); ok && docs.remote.V3[name] != nil {
			h.serveRemote(w, r, name, docs.remote.V3[name])
			return
		}
	}
	if err == nil {
		err = docs.serve(w, r, h.now())
	}
	if err != nil {
		h.log.ErrorContext(r.Context(), "Could not serve OpenAPI", "path", r.URL.Path, "error", err)
		http.Error(w, "openapi: "+err.Error(), http.StatusInternalServerError)
	}
}

func (d *documents) serve(w http.ResponseWriter, r *http.Request, now time.Time) error {
	switch r.URL.Path {
	case "/openapi/v3":
		index, err := d.index()
		if err != nil {
			return err
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8") // as in kube-apiserver, and without an ETag
		http.ServeContent(w, r, "", d.since, bytes.NewReader(index))
		return nil
	case "/openapi/v2":
		w.Header().Add("Vary", "Accept-Encoding")
		return d.send(w, r, d.v2, "v2@v1.0", nil)
	}
	name := strings.TrimPrefix(r.URL.Path, "/openapi/v3/")
	doc := d.v3[name]
	if doc == nil {
		w.WriteHeader(http.StatusNotFound)
		return nil
	}
	return d.send(w, r, doc, "v3@v1.0", func(hash string) bool {
		asked := r.URL.Query().Get("hash")
		switch {
		case asked == "":
		case asked != hash:
			http.Redirect(w, r, relative(name, hash), http.StatusMovedPermanently)
			return false
		default:
			w.Header().Set("Cache-Control", "public, immutable")
			w.Header().Set("Expires", now.AddDate(1, 0, 0).Format(time.RFC1123))
		}
		return true
	})
}

// send writes a document in the first form that the client accepts. cache, if not nil, sets headers, or writes the
// response itself and returns false.
func (d *documents) send(w http.ResponseWriter, r *http.Request, doc *document, proto string, cache func(hash string) bool) error {
	contentType, ok := form(r.Header.Get("Accept"), proto)
	w.Header().Add("Vary", "Accept")
	if !ok {
		w.WriteHeader(http.StatusNotAcceptable)
		return nil
	}
	hash, err := doc.hash()
	if err != nil {
		return err
	}
	w.Header().Set("Etag", strconv.Quote(hash))
	w.Header().Set("Content-Type", contentType)
	if cache != nil && !cache(hash) {
		return nil
	}
	get := doc.json
	if contentType != "application/json" {
		get = doc.protobuf
	}
	body, err := get()
	if err != nil {
		return err
	}
	if acceptsGzip(r) {
		w.Header().Set("Content-Encoding", "gzip")
		if len(w.Header()["Vary"]) < 2 {
			w.Header().Add("Vary", "Accept-Encoding")
		}
	} else if body, err = inflate(body); err != nil {
		return err
	}
	http.ServeContent(w, r, "", d.since, bytes.NewReader(body))
	return nil
}

// form returns the content type for an Accept header.
func form(accept, proto string) (string, bool) {
	if accept == "" {
		return "application/json", true
	}
	old := "com.github.proto-openapi.spec." + proto + "+protobuf"
	protobuf := strings.ReplaceAll(old, "@", ".")
	for _, clause := range goautoneg.ParseAccept(accept) {
		if clause.Type != "application" && clause.Type != "*" {
			continue
		}
		switch clause.SubType {
		case "json", "*":
			return "application/json", true
		case protobuf, old:
			return "application/" + protobuf, true
		}
	}
	return "", false
}

func acceptsGzip(r *http.Request) bool {
	for _, e := range strings.Split(r.Header.Get("Accept-Encoding"), ",") {
		name, params, _ := strings.Cut(strings.TrimSpace(e), ";")
		if name == "gzip" && strings.ReplaceAll(params, " ", "") != "q=0" {
			return true
		}
	}
	return false
}
