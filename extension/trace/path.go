// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxElements is how deep a path may go.
const maxElements = 100

// Element is one step of a [Path]: into a map by name, or into a list by index or by a key of the element.
type Element struct {
	List  bool
	Name  string // of a map's entry; in a list, the key that the element has, or empty: Index counts
	Value string // that the element's key has
	Index int
}

// Path leads to a field of an object.
type Path []Element

// ParsePath reads a path as people write it: spec.containers[0].image, .metadata.labels["a/b"], spec.containers[name=web].image.
// A dot or a bracket that is part of a name is escaped by a backslash, or the name is written in brackets and quotes.
func ParsePath(s string) (Path, error) {
	p, err := parsePath(s)
	if err != nil {
		return nil, fmt.Errorf("read path %q: %w", s, err)
	}
	return p, nil
}

func parsePath(s string) (Path, error) {
	rest := strings.TrimPrefix(s, "$")
	if rest == "" || rest == "." {
		return nil, errors.New("it is empty")
	}
	var p Path
	for begin := true; rest != ""; begin = false {
		if len(p) == maxElements {
			return nil, fmt.Errorf("it is deeper than %d", maxElements)
		}
		var e Element
		var err error
		switch {
		case rest[0] == '[':
			e, rest, err = parseBrackets(rest[1:])
		case rest[0] == '.':
			if rest = rest[1:]; rest != "" && rest[0] == '[' { // .metadata.labels.["a"]
				e, rest, err = parseBrackets(rest[1:])
				break
			}
			e.Name, rest, err = parseName(rest)
		case begin:
			e.Name, rest, err = parseName(rest)
		default:
			return nil, fmt.Errorf("a dot or a bracket is missing before %q", rest)
		}
		if err != nil {
			return nil, err
		}
		p = append(p, e)
	}
	return p, nil
}

// parseName reads a name up to the next dot or bracket.
func parseName(s string) (name, rest string, err error) {
	var b strings.Builder
	i := 0
	for ; i < len(s) && s[i] != '.' && s[i] != '['; i++ {
		switch s[i] {
		case '\\':
			if i++; i == len(s) {
				return "", "", errors.New("a backslash ends it")
			}
		case ']', '"', '\'':
			return "", "", fmt.Errorf("%q is not expected in a name", s[i])
		}
		b.WriteByte(s[i])
	}
	if i == 0 {
		return "", "", errors.New("a name is missing")
	}
	return b.String(), s[i:], nil
}

// parseBrackets reads what stands in brackets: an index, a quoted name, or key=value.
func parseBrackets(s string) (Element, string, error) {
	if s != "" && (s[0] == '"' || s[0] == '\'') {
		name, rest, err := parseQuoted(s)
		if err == nil && !strings.HasPrefix(rest, "]") {
			err = errors.New("a bracket is not closed")
		}
		if err != nil {
			return Element{}, "", err
		}
		return Element{Name: name}, rest[1:], nil
	}
	end := strings.IndexAny(s, "]=")
	if end < 0 {
		return Element{}, "", errors.New("a bracket is not closed")
	}
	said := s[:end]
	if s[end] == ']' {
		if said == "" || said[0] == '+' || said[0] == '-' {
			return Element{}, "", fmt.Errorf("%q is no index", said)
		}
		n, err := strconv.Atoi(said)
		if err != nil {
			return Element{}, "", fmt.Errorf("%q is no index", said)
		}
		return Element{List: true, Index: n}, s[end+1:], nil
	}
	if said == "" || strings.ContainsAny(said, `"'\[.`) {
		return Element{}, "", fmt.Errorf("%q is no key", said)
	}
	e, rest := Element{List: true, Name: said}, s[end+1:]
	if rest != "" && (rest[0] == '"' || rest[0] == '\'') {
		var err error
		if e.Value, rest, err = parseQuoted(rest); err != nil {
			return Element{}, "", err
		}
	} else {
		to := strings.IndexByte(rest, ']')
		if to < 0 {
			return Element{}, "", errors.New("a bracket is not closed")
		}
		e.Value, rest = rest[:to], rest[to:]
	}
	if !strings.HasPrefix(rest, "]") {
		return Element{}, "", errors.New("a bracket is not closed")
	}
	return e, rest[1:], nil
}

// parseQuoted reads a string up to the quote with which it begins.
func parseQuoted(s string) (text, rest string, err error) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case s[0]:
			return b.String(), s[i+1:], nil
		case '\\':
			if i++; i == len(s) {
				return "", "", errors.New("a quote is not closed")
			}
		}
		b.WriteByte(s[i])
	}
	return "", "", errors.New("a quote is not closed")
}

// String is the path as people write it; [ParsePath] reads it again.
func (p Path) String() string {
	var b strings.Builder
	for i, e := range p {
		switch {
		case e.List && e.Name == "":
			fmt.Fprintf(&b, "[%d]", e.Index)
		case e.List:
			b.WriteString("[" + e.Name + "=")
			quote(&b, e.Value)
			b.WriteByte(']')
		case plain(e.Name):
			if i > 0 {
				b.WriteByte('.')
			}
			b.WriteString(e.Name)
		default:
			b.WriteByte('[')
			quote(&b, e.Name)
			b.WriteByte(']')
		}
	}
	return b.String()
}

// plain reports whether a name needs no quotes.
func plain(name string) bool {
	if name == "" {
		return false
	}
	for _, c := range []byte(name) {
		if c != '_' && c != '-' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}

func quote(b *strings.Builder, s string) {
	b.WriteByte('"')
	for _, c := range []byte(s) {
		if c == '"' || c == '\\' {
			b.WriteByte('\\')
		}
		b.WriteByte(c)
	}
	b.WriteByte('"')
}

// pointer is the path as RFC 6901 has it; of a path whose list elements are all indexes.
func (p Path) pointer() string {
	var b strings.Builder
	for _, e := range p {
		b.WriteByte('/')
		if e.List {
			b.WriteString(strconv.Itoa(e.Index))
		} else {
			b.WriteString(escapes.Replace(e.Name))
		}
	}
	return b.String()
}

var escapes = strings.NewReplacer("~", "~0", "/", "~1")

// In returns the value at the path in decoded JSON, and whether it exists.
func (p Path) In(v any) (any, bool) {
	for _, e := range p {
		if !e.List {
			m, ok := v.(map[string]any)
			if !ok {
				return nil, false
			}
			if v, ok = m[e.Name]; !ok {
				return nil, false
			}
			continue
		}
		l, ok := v.([]any)
		if !ok {
			return nil, false
		}
		i := e.at(l)
		if i < 0 || i >= len(l) {
			return nil, false
		}
		v = l[i]
	}
	return v, true
}

// at is the index of the element in a list; -1: it is not there.
func (e Element) at(l []any) int {
	if e.Name == "" {
		return e.Index
	}
	for i, x := range l {
		if m, ok := x.(map[string]any); ok {
			if v, ok := m[e.Name]; ok && fmt.Sprint(v) == e.Value {
				return i
			}
		}
	}
	return -1
}
