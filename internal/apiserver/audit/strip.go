// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import "bytes"

// position is the position of a value in a response, as far as managed fields can occur below it.
type position int

const (
	elsewhere position = iota
	root               // an object, a list or a table
	items              // of a list
	item               // an object in a list or in a table's row
	rows               // of a table
	row
	metadata
	managed
)

func (p position) below(key []byte) position {
	switch {
	case (p == root || p == item) && string(key) == `"metadata"`:
		return metadata
	case p == root && string(key) == `"items"`:
		return items
	case p == root && string(key) == `"rows"`:
		return rows
	case p == row && string(key) == `"object"`:
		return item
	case p == metadata && string(key) == `"managedFields"`:
		return managed
	}
	return elsewhere
}

func (p position) element() position {
	switch p {
	case items:
		return item
	case rows:
		return row
	}
	return elsewhere
}

// withoutManagedFields returns an object, list or table in compact JSON without metadata.managedFields, and otherwise
// unchanged. It returns input that is not JSON as it is.
func withoutManagedFields(b []byte) []byte {
	if !bytes.Contains(b, []byte(`"managedFields"`)) {
		return b
	}
	s := stripper{in: b, out: make([]byte, 0, len(b))}
	if !s.value(root) || s.at != len(b) {
		return b
	}
	return s.out
}

type stripper struct {
	in, out []byte
	at      int
}

func (s *stripper) peek() byte {
	if s.at < len(s.in) {
		return s.in[s.at]
	}
	return 0
}

// take copies the next byte if it is c.
func (s *stripper) take(c byte) bool {
	if s.peek() != c {
		return false
	}
	s.out = append(s.out, c)
	s.at++
	return true
}

func (s *stripper) value(p position) bool {
	switch {
	case p == elsewhere:
		from := s.at
		if !s.skip() {
			return false
		}
		s.out = append(s.out, s.in[from:s.at]...)
		return true
	case s.peek() == '{':
		return s.object(p)
	case s.peek() == '[':
		return s.array(p)
	}
	return s.value(elsewhere)
}

func (s *stripper) object(p position) bool {
	s.take('{')
	for first := true; ; first = false {
		if s.peek() == '}' {
			return s.take('}')
		}
		if !first {
			if s.peek() != ',' {
				return false
			}
			s.at++
		}
		from := s.at
		if s.peek() != '"' || !s.skip() {
			return false
		}
		key := s.in[from:s.at]
		if s.peek() != ':' {
			return false
		}
		s.at++
		below := p.below(key)
		if below == managed {
			if !s.skip() {
				return false
			}
			continue
		}
		if n := len(s.out); s.out[n-1] != '{' {
			s.out = append(s.out, ',')
		}
		s.out = append(append(s.out, key...), ':')
		if !s.value(below) {
			return false
		}
	}
}

func (s *stripper) array(p position) bool {
	s.take('[')
	for {
		if s.peek() == ']' {
			return s.take(']')
		}
		if !s.value(p.element()) {
			return false
		}
		if s.peek() != ']' && !s.take(',') {
			return false
		}
	}
}

// skip skips a value.
func (s *stripper) skip() bool {
	depth := 0
	for s.at < len(s.in) {
		switch c := s.in[s.at]; c {
		case '"':
			for s.at++; s.at < len(s.in) && s.in[s.at] != '"'; s.at++ {
				if s.in[s.at] == '\\' {
					s.at++
				}
			}
			if s.at >= len(s.in) {
				return false
			}
			s.at++
		case '{', '[':
			depth++
			s.at++
		case '}', ']':
			depth--
			s.at++
		case ',', ':':
			s.at++
		default:
			from := s.at
			for s.at < len(s.in) && !bytes.ContainsRune([]byte(`",:{}[]`), rune(s.in[s.at])) {
				s.at++
			}
			if s.at == from {
				return false
			}
		}
		if depth < 0 {
			return false
		}
		if depth == 0 {
			return true
		}
	}
	return false
}
