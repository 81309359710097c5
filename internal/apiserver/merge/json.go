// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package merge applies merge patches and strategic merge patches.
//
// Both return the results and errors of kube-apiserver's libraries, but their cost grows linearly with the size of the
// object and of the patch. In those libraries a merge patch costs its size times its depth, and a strategic merge patch
// costs more than the square of a list's length: a patch of 3 MiB or less takes minutes there.
package merge

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// JSON applies a merge patch (RFC 7386) to the text of a JSON object. The patch must be valid JSON.
func JSON(doc, patch []byte) ([]byte, error) {
	p := (&scanner{text: patch}).value()
	var merged *value
	switch {
	case p.members != nil:
		merged = (&scanner{text: doc}).merge(p)
	case p.elements != nil:
		merged = p.prune()
	default:
		return nil, jsonpatch.ErrBadJSONPatch
	}
	out, err := json.Marshal(json.RawMessage(merged.write(make([]byte, 0, len(doc)+len(patch)))))
	if err != nil {
		return nil, fmt.Errorf("encode patched object: %w", err)
	}
	return out, nil
}

// value is a JSON value: a parsed object or array, or the text of any value.
type value struct {
	members  map[string]*value
	elements []*value
	text     []byte
}

func (v *value) null() bool { return string(v.text) == "null" }

// prune removes null members at all levels.
func (v *value) prune() *value {
	for k, m := range v.members {
		if m.null() {
			delete(v.members, k)
		} else {
			m.prune()
		}
	}
	for _, e := range v.elements {
		e.prune()
	}
	return v
}

// write appends the value's text, with the members of objects sorted by name.
func (v *value) write(out []byte) []byte {
	separator := byte('{')
	switch {
	case v.members != nil:
		for _, k := range slices.Sorted(maps.Keys(v.members)) {
			name, err := json.Marshal(k)
			if err != nil {
				panic(fmt.Sprintf("encode string: %v", err)) // every string has a JSON text
			}
			out = append(append(append(out, separator), name...), ':')
			out, separator = v.members[k].write(out), ','
		}
		if separator == '{' {
			out = append(out, '{')
		}
		return append(out, '}')
	case v.elements != nil:
		separator = '['
		for _, e := range v.elements {
			out, separator = e.write(append(out, separator)), ','
		}
		if separator == '[' {
			out = append(out, '[')
		}
		return append(out, ']')
	}
	return append(out, v.text...)
}

// scanner reads valid JSON, each byte once.
type scanner struct {
	text []byte
	at   int
}

// next returns the first byte after white space.
func (s *scanner) next() byte {
	for {
		switch c := s.text[s.at]; c {
		case ' ', '\t', '\r', '\n':
			s.at++
		default:
			return c
		}
	}
}

// value parses the next value.
func (s *scanner) value() *value {
	switch s.next() {
	case '{':
		v := &value{members: map[string]*value{}}
		s.object(func(name string) { v.members[name] = s.value() })
		return v
	case '[':
		v := &value{elements: []*value{}}
		for s.at++; s.next() != ']'; s.comma() {
			v.elements = append(v.elements, s.value())
		}
		s.at++
		return v
	}
	return &value{text: s.skip()}
}

// object calls member for each member of the next object, when the member's value comes next.
func (s *scanner) object(member func(name string)) {
	for s.at++; s.next() != '}'; s.comma() {
		quoted := s.skip()
		name := string(quoted[1 : len(quoted)-1])
		if bytes.IndexFunc(quoted, func(r rune) bool { return r == '\\' || r >= 0x80 }) >= 0 {
			if err := json.Unmarshal(quoted, &name); err != nil {
				panic(fmt.Sprintf("decode name: %v", err)) // the JSON is valid
			}
		}
		s.next()
		s.at++ // skip the colon
		member(name)
	}
	s.at++
}

func (s *scanner) comma() {
	if s.next() == ',' {
		s.at++
	}
}

// skip skips the next value and returns its text.
func (s *scanner) skip() []byte {
	s.next()
	begin, depth := s.at, 0
	for s.at < len(s.text) {
		switch c := s.text[s.at]; c {
		case '"':
			s.quoted()
		case '{', '[':
			depth++
			s.at++
			continue
		case '}', ']':
			depth--
			s.at++
		default:
			s.at++
			if depth > 0 || s.at < len(s.text) && !bytes.ContainsRune([]byte(",]} \t\r\n"), rune(s.text[s.at])) {
				continue
			}
		}
		if depth == 0 {
			break
		}
	}
	return s.text[begin:s.at]
}

// quoted skips a string.
func (s *scanner) quoted() {
	for s.at++; s.text[s.at] != '"'; s.at++ {
		if s.text[s.at] == '\\' {
			s.at++
		}
	}
	s.at++
}

// merge merges a patch into the next value. It does not parse members that the patch does not name.
func (s *scanner) merge(patch *value) *value {
	if s.next() != '{' {
		s.skip()
		return patch.prune()
	}
	if patch.members == nil {
		s.skip()
		return patch // an array that replaces an object keeps its nulls, as in the library
	}
	merged := &value{members: map[string]*value{}}
	s.object(func(name string) {
		p := patch.members[name]
		switch {
		case p == nil:
			merged.members[name] = &value{text: s.skip()}
		case p.null():
			s.skip()
		default:
			merged.members[name] = s.merge(p)
		}
		delete(patch.members, name)
	})
	for name, p := range patch.members {
		if !p.null() {
			merged.members[name] = p.prune()
		}
	}
	return merged
}
