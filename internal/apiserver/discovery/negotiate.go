// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"net/http"

	types "github.com/mortise-dev/mortise/internal/apiserver/negotiate"
)

const (
	mediaJSON     = types.JSON
	mediaYAML     = types.YAML
	mediaProtobuf = types.Protobuf
)

// format is the encoding of a response.
type format struct {
	mediaType  string
	pretty     bool
	aggregated bool
	own        bool // what this server serves, without the others of the cluster
}

// contentType returns the Content-Type header of the format.
func (f format) contentType() string {
	if f.aggregated {
		return f.mediaType + ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	}
	return f.mediaType
}

// negotiate returns the first clause of the Accept header that the server supports; not ok: there is none. Clauses for
// the aggregated form count only if aggregates is true.
func negotiate(r *http.Request, media []string, aggregates bool) (format, bool) {
	header := r.Header.Get("Accept")
	f, ok := types.Parse(header).Choose(header, &types.Offer{Media: media, Discovery: aggregates})
	if !ok {
		f.Media = mediaJSON
	}
	return format{mediaType: f.Media, pretty: f.Pretty || types.Pretty(r), aggregated: f.Target != nil,
		own: f.NoPeers}, ok
}
