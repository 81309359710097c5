// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package recordings reads requests and what kube-apiserver answered to them, and sends the requests to a server, so that its answers can
// be compared. Both are normalised alike.
package recordings

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Namespace is the one that the requests are about. It is there before the first, with its service account.
const Namespace = "dialogue"

// Exchange is one line of the recordings.
type Exchange struct {
	ID      string            `json:"id"`
	Method  string            `json:"method"`
	Path    string            `json:"path"`
	Headers map[string]string `json:"headers"`
	Body    *string           `json:"body"`
	Big     json.RawMessage   `json:"big"`
	Answer  map[string]any    `json:"answer"`
}

// Area groups exchanges: kind/GROUP/VERSION/RESOURCE for those of a kind, the first part of the id otherwise.
func (e Exchange) Area() string {
	if parts := strings.Split(e.ID, "/"); parts[0] == "kind" && len(parts) >= 4 {
		return strings.Join(parts[:4], "/")
	}
	first, _, _ := strings.Cut(e.ID, "/")
	first, _, _ = strings.Cut(first, "?")
	return first
}

// Recorded reports whether the answer was recorded: some requests are sent for their effect.
func (e Exchange) Recorded() bool { return len(e.Answer) > 0 && e.Method != "WAIT" }

// Read calls say with each exchange of a file, in order, but for those whose bodies are too big to be recorded.
func Read(file string, say func(Exchange)) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewReaderSize(f, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF && len(line) == 0 {
			return nil
		}
		if err != nil && err != io.EOF {
			return fmt.Errorf("read recordings: %w", err)
		}
		var e Exchange
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("read recordings: %w", err)
		}
		if e.Big == nil {
			say(e)
		}
	}
}

// Before are the requests that make what is there before the first.
func Before() []Exchange {
	headers := map[string]string{"Content-Type": "application/json", "Accept": "application/json"}
	namespace := `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"` + Namespace + `"}}`
	account := `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"default"}}`
	return []Exchange{
		{ID: "before/namespace", Method: "POST", Path: "/api/v1/namespaces", Headers: headers, Body: &namespace},
		{ID: "before/account", Method: "POST", Path: "/api/v1/namespaces/" + Namespace + "/serviceaccounts", Headers: headers, Body: &account},
	}
}

// Answer sends one request and normalises what comes back.
func Answer(t *testing.T, client *http.Client, url string, e Exchange) map[string]any {
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
