// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package learn

import (
	"context"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"k8s.io/kube-openapi/pkg/openapiconv"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/mortise-dev/mortise/internal/apiserver/openapi"
)

// described is the parsed OpenAPI of a server. Its maps are immutable once published.
type described struct {
	v3  map[string]*openapi.RemoteDocument // by path
	v2  map[string]openapi.RemoteV2        // by name of the APIService, with the priorities at the time of reading
	tag string                             // of the v2 document
	of  []string                           // the group versions in v2
}

// add adds the documents of one group version to a state.
func (d *described) add(to *openapi.Remote, r *Remote) {
	for _, p := range []string{"apis/" + r.Group, "apis/" + r.Group + "/" + r.Version} {
		if doc := d.v3[p]; doc != nil {
			if to.V3 == nil {
				to.V3 = map[string]*openapi.RemoteDocument{}
			}
			to.V3[p] = doc
		}
	}
	if v, ok := d.v2[r.Name]; ok {
		v.GroupPriority, v.VersionPriority = r.GroupPriority, r.VersionPriority
		to.V2 = append(to.V2, v)
	}
}

// describe requests the server's OpenAPI: the index of v3, whose documents are fetched on demand, and the document of v2. A
// server may have neither.
func (s *server) describe(ctx context.Context) error {
	remotes, err := s.askable()
	if err != nil {
		return err
	}
	s.learner.mu.Lock()
	before := s.api
	s.learner.mu.Unlock()
	now := before
	whole, v2err := s.describeV2(ctx, remotes, &now)
	v3err := s.describeV3(ctx, remotes, &now, whole)
	s.learner.mu.Lock()
	defer s.learner.mu.Unlock()
	s.api = now
	if s.learner.servers[s.name] == s {
		s.learner.publish()
	}
	return errors.Join(v2err, v3err)
}

// describeV2 reads the v2 document. It returns the whole document if that has changed.
func (s *server) describeV2(ctx context.Context, remotes []Remote, now *described) (*spec.Swagger, error) {
	of := names(remotes)
	tag := now.tag
	if !slices.Equal(of, now.of) {
		tag = "" // the documents of other groups were dropped
	}
	a, err := question{remotes[0].OpenAPI, &remotes[0], "/openapi/v2", "application/json", tag, openapiTime, openapiSize}.ask(ctx)
	switch {
	case err != nil:
		return nil, err
	case a.code == http.StatusNotModified && tag != "":
		return nil, nil
	case a.code == http.StatusNotFound:
		now.v2, now.tag, now.of = nil, "", of
		return nil, nil
	case a.code != http.StatusOK:
		return nil, a.refused("/openapi/v2")
	}
	sum := fmt.Sprintf("%X", sha512.Sum512(a.body))
	whole := &spec.Swagger{}
	if err := json.Unmarshal(a.body, whole); err != nil {
		return nil, fmt.Errorf("parse /openapi/v2: %w", err)
	}
	if whole.Swagger != "2.0" {
		return nil, fmt.Errorf("parse /openapi/v2: its version is %q, not 2.0", whole.Swagger)
	}
	v2 := map[string]openapi.RemoteV2{}
	for i := range remotes {
		r := &remotes[i]
		b, err := openapi.NewRemoteV2(whole, r.Group, r.Version)
		if err != nil {
			return nil, fmt.Errorf("take %s from /openapi/v2: %w", r.Name, err)
		}
		v2[r.Name] = openapi.RemoteV2{Name: r.Name, Group: r.Group, Version: r.Version, Tag: sum, Body: b}
	}
	now.v2, now.tag, now.of = v2, a.etag, of
	return whole, nil
}

// describeV3 reads the v3 index. Without one it converts the v2 document.
func (s *server) describeV3(ctx context.Context, remotes []Remote, now *described, whole *spec.Swagger) error {
	a, err := question{remotes[0].OpenAPI, &remotes[0], "/openapi/v3", "application/json", "", openapiTime, openapiSize}.ask(ctx)
	switch {
	case err != nil:
		return err
	case a.code == http.StatusNotFound:
		if whole == nil {
			return nil // unchanged
		}
		made := map[string]*openapi.RemoteDocument{}
		for i := range remotes {
			r := &remotes[i]
			doc, err := converted(whole, r)
			if err != nil {
				return fmt.Errorf("make the v3 document of %s: %w", r.Name, err)
			}
			made["apis/"+r.Group+"/"+r.Version] = doc
		}
		now.v3 = made
		return nil
	case a.code != http.StatusOK:
		return a.refused("/openapi/v3")
	}
	var index struct {
		Paths map[string]struct {
			ServerRelativeURL string `json:"serverRelativeURL"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(a.body, &index); err != nil {
		return fmt.Errorf("parse /openapi/v3: %w", err)
	}
	of := map[string]string{}
	for i := range remotes {
		r := &remotes[i]
		of["apis/"+r.Group+"/"+r.Version] = r.Name
		if of["apis/"+r.Group] == "" {
			of["apis/"+r.Group] = r.Name
		}
	}
	docs := map[string]*openapi.RemoteDocument{}
	for p, e := range index.Paths {
		name := of[p]
		if name == "" {
			continue // another server serves it
		}
		hash := ""
		if u, err := url.Parse(e.ServerRelativeURL); err == nil {
			hash = u.Query().Get("hash")
		}
		if old := now.v3[p]; old != nil && old.Name == name && old.Hash == hash {
			docs[p] = old
			continue
		}
		d := &document{server: s, name: name, path: "/openapi/v3/" + p, hash: hash, turn: make(chan struct{}, 1)}
		docs[p] = &openapi.RemoteDocument{Name: name, Hash: hash, Get: d.get}
	}
	if !maps.Equal(now.v3, docs) {
		now.v3 = docs
	}
	return nil
}

// converted makes the v3 document of a group version from a v2 document.
func converted(whole *spec.Swagger, r *Remote) (*openapi.RemoteDocument, error) {
	b, err := json.Marshal(openapiconv.ConvertV2ToV3(whole))
	if err != nil {
		return nil, fmt.Errorf("encode document: %w", err)
	}
	return openapi.NewRemoteDocument(r.Name, b)
}

// document is a v3 document that is fetched on first use, and cached.
type document struct {
	server           *server
	name, path, hash string

	turn chan struct{}     // holds a token while a goroutine fetches
	kept map[string][]byte // by content type; only the holder of turn uses it
}

func (d *document) get(ctx context.Context, contentType string) ([]byte, bool, error) {
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
	if b := d.kept[contentType]; b != nil {
		return b, true, nil
	}
	remotes := d.server.asked()
	i := slices.IndexFunc(remotes, func(r Remote) bool { return r.Name == d.name })
	if i < 0 {
		return nil, false, errors.New("it is not registered any more")
	}
	a, err := question{remotes[i].OpenAPI, &remotes[i], d.path, contentType, "", openapiTime, openapiSize}.ask(ctx)
	switch {
	case err != nil:
		return nil, false, err
	case a.code != http.StatusOK:
		return nil, false, a.refused(d.path)
	case contentType == "application/json" && !json.Valid(a.body):
		return nil, false, fmt.Errorf("parse %s: it is not JSON", d.path)
	}
	b, err := openapi.Pack(a.body)
	if err != nil {
		return nil, false, err
	}
	if d.hash == "" || strings.Trim(a.etag, `"`) != d.hash {
		if d.hash != "" {
			d.server.poke() // the index has changed
		}
		return b, false, nil
	}
	if d.kept == nil {
		d.kept = map[string][]byte{}
	}
	d.kept[contentType] = b
	return b, true, nil
}
