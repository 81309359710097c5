// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/munnerz/goautoneg"
)

const (
	mediaJSON     = "application/json"
	mediaYAML     = "application/yaml"
	mediaProtobuf = "application/vnd.kubernetes.protobuf"

	offered = mediaJSON + ", " + mediaYAML + ", " + mediaProtobuf
)

// produces says whether a router finds one of the offered media types in an Accept header; it knows no parameters and no
// wildcards but */*.
func produces(header string) bool {
	if header == "" {
		return true
	}
	for clause := range strings.SplitSeq(header, ",") {
		media, _, _ := strings.Cut(clause, ";")
		switch strings.TrimSpace(media) {
		case "*/*", mediaJSON, mediaYAML, mediaProtobuf:
			return true
		}
	}
	return false
}

// format is how an answer is encoded.
type format struct {
	mediaType  string
	pretty     bool
	aggregated bool
}

// contentType is the header of an answer in this format.
func (f format) contentType() string {
	if f.aggregated {
		return f.mediaType + ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	}
	return f.mediaType
}

// negotiate picks the first clause of the Accept header that the server can meet; not ok: there is none. Clauses that
// ask for the aggregated form count only where there is one.
func negotiate(r *http.Request, aggregates bool) (format, bool) {
	f := format{mediaType: mediaJSON}
	header := r.Header.Get("Accept")
	ok := len(header) == 0
	if !ok {
		f, ok = accept(header, aggregates)
	}
	f.pretty = f.pretty || pretty(r)
	return f, ok
}

func accept(header string, aggregates bool) (format, bool) {
	for _, clause := range goautoneg.ParseAccept(header) {
		f := format{pretty: clause.Params["pretty"] == "1"}
		switch {
		case clause.Type == "*" && clause.SubType == "*", clause.Type == "application" && (clause.SubType == "*" || clause.SubType == "json"):
			f.mediaType = mediaJSON
		case clause.Type == "application" && clause.SubType == "yaml":
			f.mediaType = mediaYAML
		case clause.Type == "application" && clause.SubType == "vnd.kubernetes.protobuf":
			f.mediaType = mediaProtobuf
		default:
			continue
		}
		if stream := clause.Params["stream"]; clause.Params["sv"] != "" || stream != "" && (stream != "watch" || f.mediaType == mediaYAML) {
			continue
		}
		as, g, v := clause.Params["as"], clause.Params["g"], clause.Params["v"]
		switch {
		case as == "" && g == "" && v == "":
		case aggregates && as == "APIGroupDiscoveryList" && g == "apidiscovery.k8s.io" && v == "v2":
			f.aggregated = true
		default:
			continue
		}
		return f, true
	}
	return format{mediaType: mediaJSON}, false
}

// pretty says whether JSON is to be indented: the query asks for it, or a person seems to read it.
func pretty(r *http.Request) bool {
	if strings.Contains(r.URL.RawQuery, "pretty") {
		if p := r.URL.Query().Get("pretty"); p != "" {
			ok, err := strconv.ParseBool(p)
			return err == nil && ok
		}
	}
	agent := r.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}
