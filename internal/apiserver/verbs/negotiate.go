// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/status"
	"github.com/mortise-dev/mortise/internal/apiserver/table"
)

// The media types that resources are served in.
const (
	mediaJSON     = "application/json"
	mediaYAML     = "application/yaml"
	mediaProtobuf = "application/vnd.kubernetes.protobuf"
)

// accept is what an Accept header comes to for a kind: immutable, shared by all requests with that header.
type accept struct {
	media  string
	target *table.Target // Table or PartialObjectMetadata(List)
	pretty bool
}

type clause struct {
	media  string
	params map[string]string
	q      float64
}

// acceptCache remembers parsed headers; clients send few different ones.
type acceptCache struct {
	mu sync.RWMutex
	m  map[string][]clause
}

const maxCachedHeaders = 256

func (c *acceptCache) clauses(header string) []clause {
	c.mu.RLock()
	cs, ok := c.m[header]
	c.mu.RUnlock()
	if ok {
		return cs
	}
	cs = parseAccept(header)
	if len(header) < 512 {
		c.mu.Lock()
		if c.m == nil {
			c.m = map[string][]clause{}
		}
		if len(c.m) < maxCachedHeaders {
			c.m[header] = cs
		}
		c.mu.Unlock()
	}
	return cs
}

func parseAccept(header string) []clause {
	var cs []clause
	for part := range strings.SplitSeq(header, ",") {
		m, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		c := clause{media: m, params: params, q: 1}
		if s, ok := params["q"]; ok {
			if f, err := strconv.ParseFloat(s, 64); err == nil {
				c.q = f
			}
		}
		cs = append(cs, c)
	}
	// a stable sort by quality; nearly always there is nothing to move
	for i := 1; i < len(cs); i++ {
		for j := i; j > 0 && cs[j].q > cs[j-1].q; j-- {
			cs[j], cs[j-1] = cs[j-1], cs[j]
		}
	}
	return cs
}

// negotiate finds what the client accepts. Watches have no YAML form.
func (q *req) negotiate(watching bool) error {
	offers := []string{mediaJSON, mediaYAML, mediaProtobuf}
	if !q.ver().Protobuf {
		offers = offers[:2]
	}
	header := strings.Join(q.r.Header.Values("Accept"), ",")
	a := &accept{media: mediaJSON}
	if query := q.r.URL.RawQuery; strings.Contains(query, "pretty") {
		p := q.r.URL.Query().Get("pretty")
		a.pretty = p != "" && p != "0" && p != "false"
	}
	q.accept = a
	if header == "" {
		return nil
	}
	cs := q.accepts.clauses(header)
	known := len(cs) == 0 && strings.TrimSpace(header) == ""
	for _, c := range cs {
		for _, offer := range offers {
			if watching && offer == mediaYAML {
				continue
			}
			if !matches(c.media, offer) {
				continue
			}
			known = true
			target, ok := formOf(c.params)
			if !ok {
				continue
			}
			a.media, a.target = offer, target
			if p := c.params["pretty"]; p == "1" || p == "true" {
				a.pretty = true
			}
			return nil
		}
	}
	if watching {
		offers = []string{mediaJSON + ";stream=watch", mediaProtobuf + ";stream=watch"}
		if !q.ver().Protobuf {
			offers = offers[:1]
		}
	}
	if !known && !q.kind.Unstructured {
		available := strings.Join(offers, ", ")
		if q.name == "" && q.r.Method == http.MethodGet {
			available += ", " + mediaJSON + ";stream=watch, " + mediaProtobuf + ";stream=watch"
		}
		return status.Route(http.StatusNotAcceptable, "406: Not Acceptable\n\nAvailable representations: "+available)
	}
	return status.Media(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		"only the following media types are accepted: "+strings.Join(offers, ", "))
}

func matches(pattern, media string) bool {
	return pattern == media || pattern == "*/*" || pattern == "application/*"
}

// formOf reads the as, g and v parameters; false if they ask for a form that does not exist.
func formOf(params map[string]string) (*table.Target, bool) {
	as := params["as"]
	if cs := params["charset"]; cs != "" && !strings.EqualFold(cs, "utf-8") {
		return nil, false
	}
	if as == "" {
		return nil, true
	}
	t := table.Target{Kind: as, Group: params["g"], Version: params["v"]}
	return &t, t.Known()
}

// warnings are sent as Warning headers, each once.
type warnings struct {
	mu     sync.Mutex
	header http.Header
	seen   map[string]struct{}
	total  int
}

const maxWarnings = 4096

// AddWarning implements k8s.io/apiserver's warning.Recorder.
func (w *warnings) AddWarning(agent, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if text == "" {
		return
	}
	if _, ok := w.seen[text]; ok {
		return
	}
	if w.seen == nil {
		w.seen = map[string]struct{}{}
	}
	w.seen[text] = struct{}{}
	if w.total += len(text); w.total > maxWarnings {
		return
	}
	h, err := warningHeader(agent, text)
	if err != nil {
		return // text that no header can carry
	}
	w.header.Add("Warning", h)
}
