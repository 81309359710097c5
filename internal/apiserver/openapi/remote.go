// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Remote has the documents of other servers: one immutable state.
type Remote struct {
	V3 map[string]*RemoteDocument // by path: apis/GROUP/VERSION
	V2 []RemoteV2
}

// RemoteDocument is the v3 document of a group version. It is fetched at its first request.
type RemoteDocument struct {
	Name string // of the APIService
	Hash string // from the server's index; empty: it has none
	// Get returns the document in one of its content types, compressed. current reports whether it is the one with
	// Hash.
	Get func(ctx context.Context, contentType string) (body []byte, current bool, err error)
}

// RemoteV2 is the part of a server's v2 document about one group version.
type RemoteV2 struct {
	Name                           string // of the APIService
	Group, Version                 string
	GroupPriority, VersionPriority int
	Tag                            string // changes with the content
	Body                           []byte // a document of the version's paths and the schemas that they refer to: compressed JSON
}

// NewRemoteV2 extracts the part about one group version from a server's v2 document.
func NewRemoteV2(whole *spec.Swagger, group, version string) ([]byte, error) {
	part := aggregator.FilterSpecByPathsWithoutSideEffects(whole, []string{"/apis/" + group + "/" + version + "/"})
	b, err := json.Marshal(part)
	if err != nil {
		return nil, fmt.Errorf("encode document: %w", err)
	}
	return deflate(b)
}

// NewRemoteDocument returns a document with known JSON, one that was converted from a v2 document.
func NewRemoteDocument(name string, b []byte) (*RemoteDocument, error) {
	z, err := deflate(b)
	if err != nil {
		return nil, err
	}
	return &RemoteDocument{Name: name, Hash: fmt.Sprintf("%X", sha512.Sum512(b)),
		Get: func(_ context.Context, contentType string) ([]byte, bool, error) {
			if contentType == "application/json" {
				return z, true, nil
			}
			b, err := inflate(z)
			if err != nil {
				return nil, false, err
			}
			doc, err := openapi_v3.ParseDocument(b)
			if err != nil {
				return nil, false, fmt.Errorf("parse document: %w", err)
			}
			if b, err = proto.Marshal(doc); err != nil {
				return nil, false, fmt.Errorf("encode document: %w", err)
			}
			z, err := deflate(b)
			return z, true, err
		}}, nil
}

// Pack compresses a document in the form that [RemoteDocument.Get] returns.
func Pack(b []byte) ([]byte, error) { return deflate(b) }

// Order sorts the parts of the v2 document in merge order: by priority, then by name.
func (r *Remote) Order() {
	group := map[string]int{}
	for i := range r.V2 {
		group[r.V2[i].Group] = max(group[r.V2[i].Group], r.V2[i].GroupPriority)
	}
	slices.SortFunc(r.V2, func(a, b RemoteV2) int {
		if a.Group == b.Group {
			return cmp.Or(cmp.Compare(b.VersionPriority, a.VersionPriority), cmp.Compare(a.Name, b.Name))
		}
		return cmp.Or(cmp.Compare(group[b.Group], group[a.Group]), cmp.Compare(a.Name, b.Name))
	})
}

// Equal reports whether two states have the same documents.
func (r *Remote) Equal(o *Remote) bool {
	return maps.Equal(r.V3, o.V3) && slices.EqualFunc(r.V2, o.V2, func(a, b RemoteV2) bool { return a.Name == b.Name && a.Tag == b.Tag })
}

// serveRemote writes another server's document.
func (h *Handler) serveRemote(w http.ResponseWriter, r *http.Request, name string, doc *RemoteDocument) {
	contentType, ok := form(r.Header.Get("Accept"), "v3@v1.0")
	w.Header().Add("Vary", "Accept")
	if !ok {
		w.WriteHeader(http.StatusNotAcceptable)
		return
	}
	asked := r.URL.Query().Get("hash")
	if asked != "" && doc.Hash != "" && asked != doc.Hash {
		http.Redirect(w, r, relative(name, doc.Hash), http.StatusMovedPermanently)
		return
	}
	body, current, err := doc.Get(r.Context(), contentType)
	if err == nil && !acceptsGzip(r) {
		body, err = inflate(body)
	}
	if err != nil {
		if r.Context().Err() == nil {
			h.log.WarnContext(r.Context(), "Could not serve the OpenAPI document of an aggregated API server", "path", r.URL.Path,
				"apiservice", doc.Name, "error", err)
		}
		http.Error(w, "openapi: APIService "+doc.Name+": "+err.Error(), http.StatusServiceUnavailable)
		return
	}
	if current && doc.Hash != "" {
		w.Header().Set("Etag", strconv.Quote(doc.Hash))
		if asked != "" {
			w.Header().Set("Cache-Control", "public, immutable")
			w.Header().Set("Expires", h.now().AddDate(1, 0, 0).Format(time.RFC1123))
		}
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Add("Vary", "Accept-Encoding")
	if acceptsGzip(r) {
		w.Header().Set("Content-Encoding", "gzip")
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}

const parameterRef = "#/parameters/"

// remoteAdditions returns the additions of other servers to the v2 document. A definition that differs from an existing
// one of the same name is renamed to NAME_v2. Parameters that are not shared are inlined. A document that cannot be
// merged is omitted.
func remoteAdditions(s *static, remote *Remote, served func(path string) bool, log *slog.Logger) (*addition, error) {
	own, err := ownDefinitions(s)
	if err != nil {
		return nil, err
	}
	all, ours := &spec.Swagger{}, map[string]int{}
	for i := range remote.V2 {
		v := &remote.V2[i]
		if served("apis/" + v.Group + "/" + v.Version) {
			continue
		}
		if err := merge(all, v, own, ours); err != nil {
			log.Warn("Skipped an aggregated API server in /openapi/v2", "apiservice", v.Name, "error", err)
		}
	}
	a := &addition{paths: []byte("{}"), definitions: []byte("{}"), changed: map[string]change{}}
	for name, kinds := range ours {
		if d := all.Definitions[name]; kindsOf(&d) != kinds {
			b, err := json.Marshal(d)
			if err != nil {
				return nil, fmt.Errorf("encode definition %s: %w", name, err)
			}
			a.changed[name] = change{own[name], b}
		}
		delete(all.Definitions, name)
	}
	if all.Paths != nil {
		paths, err := inlined(all, s.Parameters)
		if err != nil {
			return nil, err
		}
		if a.paths, err = json.Marshal(paths); err != nil {
			return nil, fmt.Errorf("encode paths: %w", err)
		}
	}
	if len(all.Definitions) > 0 {
		if a.definitions, err = json.Marshal(all.Definitions); err != nil {
			return nil, fmt.Errorf("encode definitions: %w", err)
		}
	}
	return a, nil
}

// merge adds a server's part. It first includes those of this server's own definitions that the part has under the same
// name.
func merge(all *spec.Swagger, v *RemoteV2, own map[string]json.RawMessage, ours map[string]int) error {
	b, err := inflate(v.Body)
	if err != nil {
		return err
	}
	var part spec.Swagger
	if err := json.Unmarshal(b, &part); err != nil {
		return fmt.Errorf("parse document: %w", err)
	}
	for name := range part.Definitions {
		raw, ok := own[name]
		if _, is := ours[name]; !ok || is {
			continue
		}
		var schema spec.Schema
		if err := json.Unmarshal(raw, &schema); err != nil {
			return fmt.Errorf("parse definition %s: %w", name, err)
		}
		if all.Definitions == nil {
			all.Definitions = spec.Definitions{}
		}
		all.Definitions[name], ours[name] = schema, kindsOf(&schema)
	}
	if err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(all, &part); err != nil {
		return fmt.Errorf("merge document: %w", err)
	}
	return nil
}

// kindsOf returns the number of kinds of a definition. Options and events have a kind in each group that contains them.
func kindsOf(s *spec.Schema) int {
	kinds, _ := s.Extensions[kindExtension].([]any)
	return len(kinds)
}

// ownDefinitions returns the definitions of the embedded v2 document.
func ownDefinitions(s *static) (map[string]json.RawMessage, error) {
	b, err := unzip(embedded(s.V2.File, s.V2.Hash).json)
	if err != nil {
		return nil, err
	}
	var doc struct {
		Definitions map[string]json.RawMessage `json:"definitions"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("parse definitions: %w", err)
	}
	return doc.Definitions, nil
}

// inlined returns the paths of a document with its shared parameters inlined, except for named ones, which this
// server's document shares too.
func inlined(doc *spec.Swagger, named map[string]string) (any, error) {
	params := map[string]any{}
	for name, p := range doc.Parameters {
		b, err := json.Marshal(p)
		if err != nil {
			return nil, fmt.Errorf("encode parameter: %w", err)
		}
		var content map[string]any
		if err := json.Unmarshal(b, &content); err != nil {
			return nil, fmt.Errorf("parse parameter: %w", err)
		}
		if b, err = json.Marshal(content); err != nil { // with sorted keys
			return nil, fmt.Errorf("encode parameter: %w", err)
		}
		if shared, ok := named[string(b)]; ok {
			content = map[string]any{"$ref": parameterRef + shared}
		}
		params[name] = content
	}
	b, err := json.Marshal(doc.Paths)
	if err != nil {
		return nil, fmt.Errorf("encode paths: %w", err)
	}
	var paths any
	if err := json.Unmarshal(b, &paths); err != nil {
		return nil, fmt.Errorf("parse paths: %w", err)
	}
	return replaced(paths, params), nil
}

// replaced replaces references to parameters with the parameters.
func replaced(v any, params map[string]any) any {
	switch v := v.(type) {
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok && len(v) == 1 {
			if p, ok := params[strings.TrimPrefix(ref, parameterRef)]; ok && strings.HasPrefix(ref, parameterRef) {
				return p
			}
			return v
		}
		for k, e := range v {
			v[k] = replaced(e, params)
		}
	case []any:
		for i, e := range v {
			v[i] = replaced(e, params)
		}
	}
	return v
}
