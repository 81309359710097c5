// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package negotiate selects the media type of a response and determines that of a request's body, from the request's
// headers.
//
// kube-apiserver evaluates Accept twice. Its router compares the literal media types with those that a route produces
// ([Routed]). A handler then selects a form by the clauses' order, quality and parameters ([Clauses.Choose]), from
// those that its endpoint offers ([Offer]). Errors are offered without transformations; a client that accepts none of
// their forms gets indented JSON.
//
// Worked example: kubectl sends "application/json;as=Table;v=v1;g=meta.k8s.io,application/json". A list of pods is a
// Table, by the first clause. A 404 is plain JSON, by the second: a Status has no columns.
//
// # Concurrency
//
// A [Cache] is safe for concurrent use; its results are shared and read-only.
package negotiate

import (
	"context"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/munnerz/goautoneg"
)

// The media types of objects and of streams of them.
const (
	JSON     = "application/json"
	YAML     = "application/yaml"
	Protobuf = "application/vnd.kubernetes.protobuf"
	CBOR     = "application/cbor"
	// CBORSequence is the type of a stream of CBOR items: a watch.
	CBORSequence = "application/cbor-seq"
)

// Types returns the media types that this server supports, in order of preference.
func Types(cbor bool) []string {
	if cbor {
		return withCBOR
	}
	return withoutCBOR
}

var (
	withoutCBOR = []string{JSON, YAML, Protobuf}
	withCBOR    = []string{JSON, YAML, Protobuf, CBOR}
)

// Streams returns the media types of watches.
func Streams(cbor bool) []string {
	s := []string{JSON + ";stream=watch", Protobuf + ";stream=watch"}
	if cbor {
		s = append(s, CBORSequence)
	}
	return s
}

type cborKey struct{}

// WithCBOR sets in a request's context whether its handler supports CBOR; by default it does not.
func WithCBOR(ctx context.Context, speaks bool) context.Context {
	return context.WithValue(ctx, cborKey{}, speaks)
}

// SpeaksCBOR reports whether the handler of the request supports CBOR.
func SpeaksCBOR(ctx context.Context) bool {
	speaks, _ := ctx.Value(cborKey{}).(bool)
	return speaks
}

// Target is the form in which a client requests an object, by the as, g and v parameters.
type Target struct{ Kind, Group, Version string }

// Form is the negotiated result of a request's Accept header.
type Form struct {
	Media  string
	Target *Target // nil: the object as it is
	Pretty bool    // by the clause's parameter; see also [Pretty]
	// NoPeers asks for the discovery of the server alone, without the other servers of the cluster.
	NoPeers bool
}

// Offer is the list of an endpoint's media types.
type Offer struct {
	Media []string // in order of preference
	// Plain are the media types of untransformed objects; nil: all. Custom resources have no protobuf form, but their
	// metadata has.
	Plain []string
	// Transforms allows Table and PartialObjectMetadata; NoTable excludes Table.
	Transforms, NoTable bool
	// Discovery allows the aggregated form of discovery.
	Discovery bool
	// ServerVersion is the only allowed value of the sv parameter.
	ServerVersion string
}

// Clauses are the clauses of an Accept header, best first.
type Clauses []goautoneg.Accept

// Parse parses an Accept header.
func Parse(header string) Clauses { return Clauses(goautoneg.ParseAccept(header)) }

// Choose returns the form of the first clause that the offer supports. For an empty header it returns the first media
// type.
func (cs Clauses) Choose(header string, o *Offer) (Form, bool) {
	if header == "" {
		return Form{Media: o.Media[0]}, true
	}
	for i := range cs {
		c := &cs[i]
		for _, m := range o.Media {
			if !matches(c, m) {
				continue
			}
			if f, ok := o.form(c.Params, m); ok {
				return f, true
			}
		}
	}
	return Form{}, false
}

func matches(c *goautoneg.Accept, media string) bool {
	if c.SubType == "*" {
		return c.Type == "*" || c.Type == "application"
	}
	sub, ok := strings.CutPrefix(media, "application/")
	return ok && c.Type == "application" && c.SubType == sub
}

func (o *Offer) form(params map[string]string, media string) (Form, bool) {
	f := Form{Media: media}
	for k, v := range params {
		switch k {
		case "as", "g", "v":
			if f.Target == nil {
				f.Target = &Target{}
			}
			switch k {
			case "as":
				f.Target.Kind = v
			case "g":
				f.Target.Group = v
			case "v":
				f.Target.Version = v
			}
		case "stream":
			if v != "" && (v != "watch" || media == YAML) {
				return f, false
			}
		case "sv":
			if v != "" && v != o.ServerVersion {
				return f, false
			}
		case "profile":
			f.NoPeers = v == "nopeer"
		case "pretty":
			f.Pretty = v == "1"
		}
	}
	return f, o.gives(f.Target, media)
}

// aggregated is the aggregated form of discovery.
var aggregated = Target{Kind: "APIGroupDiscoveryList", Group: "apidiscovery.k8s.io", Version: "v2"}

func (o *Offer) gives(t *Target, media string) bool {
	if t == nil {
		return o.Plain == nil || slices.Contains(o.Plain, media)
	}
	if o.Discovery && *t == aggregated {
		return true
	}
	if !o.Transforms || t.Group != "meta.k8s.io" || t.Version != "v1" && t.Version != "v1beta1" {
		return false
	}
	switch t.Kind {
	case "Table":
		return !o.NoTable && (media == JSON || media == YAML)
	case "PartialObjectMetadata", "PartialObjectMetadataList":
		return true
	}
	return false
}

// Routed reports whether a router whose route produces these media types accepts a request with this Accept header.
func Routed(header string, produces []string) bool {
	return header == "" || named(header, "*/*") || named(header, produces...)
}

// Consumed reports whether a router whose route consumes these media types accepts a request with this Content-Type header.
func Consumed(header string, consumes []string) bool { return named(header, consumes...) }

// named reports whether a header names one of the types, to the letter.
func named(header string, types ...string) bool {
	for part := range strings.SplitSeq(header, ",") {
		m, _, _ := strings.Cut(part, ";")
		if slices.Contains(types, strings.Trim(m, " ")) {
			return true
		}
	}
	return false
}

// Pretty reports whether JSON should be indented: the query requests it, or the client seems to be a browser or a
// command-line tool.
func Pretty(r *http.Request) bool {
	if r.URL != nil && strings.Contains(r.URL.RawQuery, "pretty") {
		if p := r.URL.Query().Get("pretty"); p != "" {
			yes, err := strconv.ParseBool(p)
			return err == nil && yes
		}
	}
	agent := r.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}

// Body returns the accepted media type that matches the Content-Type of a request; without the header, the first one.
func Body(contentType string, accepted []string) (string, bool) {
	if contentType == "" || contentType == accepted[0] {
		return accepted[0], true
	}
	m, _, err := mime.ParseMediaType(contentType)
	return m, err == nil && slices.Contains(accepted, m)
}

// AcceptsGzip reports whether a client accepts compressed responses. As in kube-apiserver, gzip with a quality
// parameter does not count.
func AcceptsGzip(r *http.Request) bool {
	header := r.Header.Get("Accept-Encoding")
	for header != "" {
		var token string
		if token, header, _ = strings.Cut(header, ","); strings.TrimSpace(token) == "gzip" {
			return true
		}
	}
	return false
}

// Cache caches parsed headers; clients send few different ones. The zero value is ready to use.
type Cache struct {
	mu sync.RWMutex
	m  map[string]Clauses
}

const (
	maxCached       = 256
	longestRemember = 512
)

// Clauses returns the clauses of an Accept header.
func (c *Cache) Clauses(header string) Clauses {
	c.mu.RLock()
	cs, ok := c.m[header]
	c.mu.RUnlock()
	if ok || header == "" {
		return cs
	}
	cs = Parse(header)
	if len(header) > longestRemember {
		return cs
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil {
		c.m = map[string]Clauses{}
	}
	if len(c.m) < maxCached {
		c.m[strings.Clone(header)] = cs
	}
	return cs
}
