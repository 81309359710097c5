// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package transcripts

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"sigs.k8s.io/yaml"
)

// exchange is a request of a dialogue, as it is written.
type exchange struct {
	title, comment string
	method, path   string
	headers        [][2]string
	until          string // the type of event that ends a watch
	untilCount     int
	body           string
}

// parse reads the requests of a dialogue; what was answered is left out. intro is what stands before the first.
func parse(text string) (intro string, es []exchange, err error) {
	parts := strings.Split("\n"+text, "\n=== ")
	intro = strings.TrimPrefix(parts[0], "\n")
	for _, part := range parts[1:] {
		e, err := parseOne(part)
		if err != nil {
			return "", nil, err
		}
		es = append(es, e)
	}
	return intro, es, nil
}

func parseOne(part string) (exchange, error) {
	request, _, _ := strings.Cut(part+"\n", "\n---\n")
	lines := strings.Split(strings.TrimRight(request, "\n"), "\n")
	e := exchange{title: lines[0]}
	lines = lines[1:]
	for len(lines) > 0 && strings.HasPrefix(lines[0], "#") {
		e.comment += lines[0] + "\n"
		lines = lines[1:]
	}
	if len(lines) == 0 {
		return e, fmt.Errorf("read %q: no request", e.title)
	}
	method, path, ok := strings.Cut(lines[0], " ")
	if !ok {
		return e, fmt.Errorf("read %q: %q is not a method and a path", e.title, lines[0])
	}
	e.method, e.path = method, path
	for i, l := range lines[1:] {
		if l == "" {
			e.body = strings.Join(lines[i+2:], "\n")
			break
		}
		if what, found := strings.CutPrefix(l, "until "); found {
			kind, count, _ := strings.Cut(what, " ")
			e.until, e.untilCount = kind, 1
			if n, err := strconv.Atoi(count); err == nil {
				e.untilCount = n
			}
			continue
		}
		k, v, ok := strings.Cut(l, ": ")
		if !ok {
			return e, fmt.Errorf("read %q: %q is not a header", e.title, l)
		}
		e.headers = append(e.headers, [2]string{k, v})
	}
	return e, nil
}

// String is the exchange as it is written, without an answer.
func (e exchange) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "=== %s\n%s%s %s\n", e.title, e.comment, e.method, e.path)
	for _, h := range e.headers {
		fmt.Fprintf(&b, "%s: %s\n", h[0], h[1])
	}
	if e.until != "" {
		fmt.Fprintf(&b, "until %s", e.until)
		if e.untilCount > 1 {
			fmt.Fprintf(&b, " %d", e.untilCount)
		}
		b.WriteByte('\n')
	}
	if e.body != "" {
		fmt.Fprintf(&b, "\n%s\n", strings.TrimRight(e.body, "\n"))
	}
	return b.String()
}

func (e exchange) header(name, otherwise string) string {
	for _, h := range e.headers {
		if strings.EqualFold(h[0], name) {
			return h[1]
		}
	}
	return otherwise
}

var (
	captured = regexp.MustCompile(`\{([A-Za-z0-9 ,-]+)\.(rv|uid|name|continue)\}`)
	filled   = regexp.MustCompile(`\{fill (\d+)\}`)
)

// substitute puts in what earlier answers held.
func substitute(text string, answers map[string]any) (string, error) {
	var missing error
	text = captured.ReplaceAllStringFunc(text, func(m string) string {
		g := captured.FindStringSubmatch(m)
		v, ok := field(answers[g[1]], "metadata", map[string]string{"rv": "resourceVersion", "uid": "uid", "name": "name",
			"continue": "continue"}[g[2]])
		s, isText := v.(string)
		if !ok || !isText {
			missing = fmt.Errorf("substitute %s: %q answered no such thing", m, g[1])
		}
		return s
	})
	text = filled.ReplaceAllStringFunc(text, func(m string) string {
		n, _ := strconv.Atoi(filled.FindStringSubmatch(m)[1])
		return strings.Repeat("x", n)
	})
	return text, missing
}

func field(v any, path ...string) (any, bool) {
	for _, p := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil, false
		}
		if v, ok = m[p]; !ok {
			return nil, false
		}
	}
	return v, true
}

// payload is the body that is sent.
func (e exchange) payload(answers map[string]any) (string, error) {
	body, err := substitute(e.body, answers)
	if err != nil {
		return "", err
	}
	if first, rest, _ := strings.Cut(body, "\n"); strings.HasPrefix(first, "as ") && strings.HasSuffix(first, ", with") {
		title := strings.TrimSuffix(strings.TrimPrefix(first, "as "), ", with")
		base, ok := answers[title]
		if !ok {
			return "", fmt.Errorf("make the body of %q: nothing is called %q", e.title, title)
		}
		whole, err := json.Marshal(base)
		if err != nil {
			return "", err
		}
		change, err := yaml.YAMLToJSON([]byte(rest))
		if err != nil || string(change) == "null" {
			return string(whole), err
		}
		whole, err = jsonpatch.MergePatch(whole, change)
		return string(whole), err
	}
	if !strings.Contains(e.header("Content-Type", "application/json"), "json") || body == "" || strings.ContainsRune("{[\"", rune(body[0])) {
		return body, nil
	}
	var v any
	if yaml.Unmarshal([]byte(body), &v) != nil || !structured(v) {
		return body, nil
	}
	data, err := yaml.YAMLToJSON([]byte(body))
	return string(data), err
}

func structured(v any) bool {
	switch v.(type) {
	case map[string]any, []any:
		return true
	}
	return false
}
