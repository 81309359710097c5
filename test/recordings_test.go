// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// differing are the exchanges that Mortise answers otherwise, by id, and why.
var differing = map[string]string{
	"kind/certificates.k8s.io/v1/certificatesigningrequests/get-yaml":   "the administrator of the recording has another name and no uid",
	"kind/certificates.k8s.io/v1/certificatesigningrequests/get-table":  "the administrator of the recording has another name",
	"kind/certificates.k8s.io/v1/certificatesigningrequests/list-table": "the administrator of the recording has another name",
	"path/api": "it holds the server's own address",
}

// recordings is what kube-apiserver 1.37.1 answered; it lies beside the checkout.
const recordings = "../../shared/recordings/upstream-1.37.1.jsonl"

// exchange is one line of the recordings.
type exchange struct {
	ID      string            `json:"id"`
	Method  string            `json:"method"`
	Path    string            `json:"path"`
	Headers map[string]string `json:"headers"`
	Body    *string           `json:"body"`
	Big     json.RawMessage   `json:"big"`
	Answer  map[string]any    `json:"answer"`
}

// area groups exchanges: kind/GROUP/VERSION/RESOURCE for those of a kind, the first part of the id otherwise.
func (e exchange) area() string {
	if parts := strings.Split(e.ID, "/"); parts[0] == "kind" && len(parts) >= 4 {
		return strings.Join(parts[:4], "/")
	}
	first, _, _ := strings.Cut(e.ID, "/")
	first, _, _ = strings.Cut(first, "?")
	return first
}

// TestRecordings says the recorded requests, in order, to a bare API server. The answers that are not the same after normalising are
// those of the list, no more and no fewer. Run it with -v and DIFFERENCES=AREA to see what differs in an area.
func TestRecordings(t *testing.T) {
	file, err := os.Open(recordings)
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("CI lacks the recordings: %v", err)
		}
		t.Skipf("the recordings are not beside this checkout: %v", err)
	}
	defer file.Close()
	cluster := embedtest.Start(t, &embed.Server{Node: embed.NodeNone, Controllers: []string{"none"}})
	client, err := rest.HTTPClientFor(cluster.Config())
	if err != nil {
		t.Fatal(err)
	}
	say := func(e exchange) map[string]any {
		return answer(t, client, cluster.URL(), e)
	}
	jsonHeaders := map[string]string{"Content-Type": "application/json", "Accept": "application/json"}
	for path, body := range map[string]string{"/api/v1/namespaces": `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"dialogue"}}`} {
		say(exchange{Method: "POST", Path: path, Headers: jsonHeaders, Body: &body})
	}
	account := `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"default"}}`
	say(exchange{Method: "POST", Path: "/api/v1/namespaces/dialogue/serviceaccounts", Headers: jsonHeaders, Body: &account})

	type count struct{ same, all int }
	areas := map[string]*count{}
	total := count{}
	differ := map[string]bool{}
	wanted := os.Getenv("DIFFERENCES")
	lines := bufio.NewReaderSize(file, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF && len(line) == 0 {
			break
		}
		if err != nil && err != io.EOF {
			t.Fatal(err)
		}
		var e exchange
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		if e.Big != nil {
			continue
		}
		got := say(e)
		if len(e.Answer) == 0 || e.Method == "WAIT" {
			continue
		}
		c := areas[e.area()]
		if c == nil {
			c = &count{}
			areas[e.area()] = c
		}
		c.all++
		total.all++
		d := gocmp.Diff(e.Answer, got)
		if d == "" {
			c.same++
			total.same++
			continue
		}
		differ[e.ID] = true
		if wanted != "" && strings.HasPrefix(e.ID, wanted) {
			t.Logf("%s: %s %s\n%s", e.ID, e.Method, e.Path, d)
		}
	}
	groups := map[string]*count{} // what is printed: a line for each API group, and for each other area
	for _, a := range slices.Sorted(maps.Keys(areas)) {
		c, name := areas[a], a
		if c.same < c.all {
			t.Logf("%s: %d of %d", a, c.same, c.all)
		}
		if parts := strings.Split(a, "/"); parts[0] == "kind" {
			name = "kinds of " + parts[1]
		} else if c.all == 1 {
			name = "single requests"
		}
		if groups[name] == nil {
			groups[name] = &count{}
		}
		groups[name].same += c.same
		groups[name].all += c.all
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		t.Logf("%-40s %4d of %4d answers are the same", name, groups[name].same, groups[name].all)
	}
	t.Logf("%d of %d answers are the same", total.same, total.all)
	for id := range differ {
		if differing[id] == "" {
			t.Errorf("%s is answered otherwise: something that was right is wrong now; DIFFERENCES=%s shows it", id, id)
		}
	}
	for id, why := range differing {
		if !differ[id] {
			t.Errorf("%s is answered alike, or is recorded no more: take it off the list (%s)", id, why)
		}
	}
}

// answer says one request and normalises what comes back.
func answer(t *testing.T, client *http.Client, url string, e exchange) map[string]any {
	t.Helper()
	method := e.Method
	if method == "WAIT" { // upstream needs seconds there; once must do here
		method = "GET"
	}
	var body io.Reader
	if e.Body != nil {
		body = strings.NewReader(*e.Body)
	}
	request, err := http.NewRequestWithContext(t.Context(), method, url+e.Path, body)
	if err != nil {
		t.Fatalf("%s: %v", e.ID, err)
	}
	request.Header.Set("User-Agent", "dialogue/1")
	for k, v := range e.Headers {
		request.Header.Set(k, v)
	}
	response, err := client.Do(request)
	if err != nil {
		return map[string]any{"status": 0.0, "error": err.Error()}
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, 64<<20))
	if err != nil {
		return map[string]any{"status": 0.0, "error": err.Error()}
	}
	out := map[string]any{"status": float64(response.StatusCode), "type": response.Header.Get("Content-Type")}
	if w := response.Header.Values("Warning"); len(w) > 0 {
		out["warning"] = w[0] // the recorder kept the first of several
	}
	for _, h := range []string{"Retry-After", "Allow"} {
		if v := response.Header.Get(h); v != "" {
			out[h] = v
		}
	}
	if contentType, _, _ := strings.Cut(response.Header.Get("Content-Type"), ";"); strings.Contains(contentType, "json") {
		var v any
		if json.NewDecoder(bytes.NewReader(data)).Decode(&v) == nil {
			out["body"] = normal(v, "")
			return out
		}
	}
	out["body"] = normal(strings.ToValidUTF8(string(data), "\ufffd"), "")
	return out
}

var (
	times      = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	uids       = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	addresses  = regexp.MustCompile(`\b10\.\d+\.\d+\.\d+\b`)
	access     = regexp.MustCompile(`kube-api-access-[a-z0-9]{5}`)
	nodePorts  = regexp.MustCompile(`:3\d{4}/|(nodePort: )3\d{4}`)
	quotedRV   = regexp.MustCompile(`(\\*"resourceVersion\\*": ?\\*")\d+`)
	revisions  = regexp.MustCompile(`(resourceVersion|modified; current|expected)[: =]+"?\d+"?`)
	ages       = regexp.MustCompile(`^(\d+(ms|s|m|h|d))+$`)
	maskedKeys = []string{"resourceVersion", "uid", "nodePort", "healthCheckNodePort", "clusterIP", "metadataResourceVersion", "username"}
)

// normal makes equal behaviour equal text, as the recorder did.
func normal(v any, key string) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, x := range v {
			out[k] = normalField(k, x)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = normal(x, "")
			if s, ok := out[i].(string); ok && key == "cells" {
				out[i] = ages.ReplaceAllString(s, "<age>")
			}
		}
		return out
	case string:
		s := uids.ReplaceAllString(times.ReplaceAllString(v, "<time>"), "<uid>")
		s = addresses.ReplaceAllString(s, "<ip>")
		s = access.ReplaceAllString(s, "kube-api-access-<rand>")
		s = nodePorts.ReplaceAllString(s, "$1:<port>/")
		s = quotedRV.ReplaceAllString(s, "$1<rv>")
		return revisions.ReplaceAllString(s, "$1 <rv>")
	}
	return v
}

// normalField is normal for a field, whose name can mean that its value is masked.
func normalField(k string, x any) any {
	switch v := x.(type) {
	case map[string]any:
		return normal(v, k)
	case []any:
		none := len(v) == 0 || len(v) == 1 && v[0] == "None"
		if k == "clusterIPs" && !none {
			return []any{"<masked>"}
		}
		if k == "groups" && len(v) > 0 && !slices.ContainsFunc(v, func(y any) bool { _, text := y.(string); return !text }) {
			return []any{"<masked>"}
		}
		return normal(v, k)
	}
	if slices.Contains(maskedKeys, k) && x != "" && x != "None" && x != "0" && x != 0.0 && x != false {
		return "<masked>"
	}
	return normal(x, k)
}
