// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/negotiate"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
	"github.com/mortise-dev/mortise/internal/apiserver/table"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
)

// The media types that resources are served in.
const (
	mediaJSON     = negotiate.JSON
	mediaYAML     = negotiate.YAML
	mediaProtobuf = negotiate.Protobuf
	mediaCBOR     = negotiate.CBOR
)

// accept is what a request's headers come to for a kind; read-only.
type accept struct {
	media  string
	target *table.Target // Table or PartialObjectMetadata(List)
	pretty bool
}

// acceptJSON and acceptPretty are what nearly all requests without a protobuf client come to.
var (
	acceptJSON   = &accept{media: mediaJSON}
	acceptPretty = &accept{media: mediaJSON, pretty: true}
)

// cached returns the cached encoding that an object's events are made of.
func (a *accept) cached() watchcache.Media {
	switch a.media {
	case mediaProtobuf:
		return watchcache.Protobuf
	case mediaCBOR:
		return watchcache.CBOR
	}
	return watchcache.JSON
}

// types are the media types that the server speaks.
func (q *req) types() []string { return negotiate.Types(negotiate.SpeaksCBOR(q.ctx)) }

// produces are the media types that kube-apiserver's route for the request has.
func (q *req) produces() []string {
	ts := q.types()
	if q.sub != nil && q.sub.Connect != nil {
		return append([]string{"text/plain"}, ts...)
	}
	if q.name == "" && q.r.Method == http.MethodGet || q.info.Verb == "watch" {
		return append(slices.Clip(ts), negotiate.Streams(len(ts) > 3)...)
	}
	return ts
}

// route refuses what kube-apiserver's router has no route for. Requests for custom resources pass none, and what connects
// takes everything, save logs.
func (q *req) route() error {
	if q.kind.Unstructured || q.sub != nil && q.sub.Connect != nil && q.sub.Name != "log" {
		return nil
	}
	if q.r.Method == http.MethodPatch && !negotiate.Consumed(q.r.Header.Get("Content-Type"), q.patchTypes()) {
		return status.Route(http.StatusUnsupportedMediaType, "415: Unsupported Media Type")
	}
	header := q.r.Header.Get("Accept")
	if header == "" || header == mediaJSON || header == mediaProtobuf {
		return nil
	}
	if produces := q.produces(); !negotiate.Routed(header, produces) {
		return status.Route(http.StatusNotAcceptable, "406: Not Acceptable\n\nAvailable representations: "+strings.Join(produces, ", "))
	}
	return nil
}

// negotiate finds what the client accepts.
func (q *req) negotiate() error {
	header := q.r.Header.Get("Accept")
	pretty := negotiate.Pretty(q.r)
	q.accept = acceptJSON
	if pretty {
		q.accept = acceptPretty
	}
	if header == "" || header == mediaJSON || header == "*/*" {
		return nil
	}
	o := negotiate.Offer{Media: q.types(), Transforms: true, NoTable: q.noTable(), ServerVersion: "v1"}
	if q.kind.Unstructured || !q.ver().Protobuf {
		o.Plain = slices.DeleteFunc(slices.Clone(o.Media), func(m string) bool { return m == mediaProtobuf })
	}
	f, ok := q.accepts.Clauses(header).Choose(header, &o)
	if !ok {
		return notAcceptable(o.Media)
	}
	a := &accept{media: f.Media, pretty: pretty || f.Pretty}
	if t := f.Target; t != nil {
		a.target = &table.Target{Kind: t.Kind, Group: t.Group, Version: t.Version}
	}
	q.accept = a
	return nil
}

// noTable reports whether upstream has no columns for the response, not even name and age.
func (q *req) noTable() bool {
	s := q.sub
	switch {
	case s == nil:
		return q.kind.Create != nil
	case q.kind.Unstructured:
		return false
	case s.View != nil:
		return false
	}
	return s.Name != "status" || slices.Contains([]string{"apiextensions.k8s.io", "apiregistration.k8s.io", "resource.k8s.io"}, q.kind.Group)
}

// negotiateStream refuses the media that have no form as a stream.
func (q *req) negotiateStream() error {
	if q.accept.media != mediaYAML {
		return nil
	}
	return notAcceptable(negotiate.Streams(negotiate.SpeaksCBOR(q.ctx)))
}

func notAcceptable(types []string) error {
	return status.Media(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		"only the following media types are accepted: "+strings.Join(types, ", "))
}
