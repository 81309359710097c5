// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	kjson "sigs.k8s.io/json"
)

const (
	plainKey    = 1000 // YAML bounds keys at 1,024 bytes
	plainDigits = 17   // of an integer: any of so many fits
)

// plainObject reads a JSON object that means to a YAML reader, to the last value, what it means to a JSON reader, and no
// more: a configuration that is applied is YAML, but nearly all clients write it as JSON, which is read six times as fast.
// It answers nil for all that might differ, and for what is wrong: escapes by number, characters beyond ASCII, fractions,
// large numbers, tabs between values, long keys, keys that come twice.
func plainObject(b []byte) map[string]any {
	if len(b) == 0 || b[0] != '{' || !plain(b) {
		return nil
	}
	m := map[string]any{}
	if strict, err := kjson.UnmarshalStrict(b, &m); err != nil || len(strict) > 0 {
		return nil
	}
	return m
}

// plain reports whether the bytes of a JSON text are of the plain sort. It does not check that the text is JSON.
func plain(b []byte) bool {
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			from := i
			for i++; ; i++ {
				if i >= len(b) || b[i] < ' ' || b[i] > '~' {
					return false
				}
				if b[i] == '"' {
					break
				}
				if b[i] == '\\' {
					if i++; i >= len(b) || b[i] != '"' && b[i] != '\\' && b[i] != 'n' && b[i] != 't' && b[i] != 'r' {
						return false
					}
				}
			}
			if i-from > plainKey && i+1 < len(b) && b[i+1] != ',' && b[i+1] != '}' && b[i+1] != ']' {
				return false // it may be a key
			}
		case c >= '1' && c <= '9':
			from := i
			for i+1 < len(b) && b[i+1] >= '0' && b[i+1] <= '9' {
				i++
			}
			if i-from >= plainDigits || i+1 < len(b) && (b[i+1] == '.' || b[i+1]|0x20 == 'e') {
				return false
			}
		case c == '0':
			if i+1 < len(b) && b[i+1] != ',' && b[i+1] != '}' && b[i+1] != ']' {
				return false
			}
		case c == '{' || c == '}' || c == '[' || c == ']' || c == ',' || c == ':' || c == ' ' || c == '\n':
		case c >= 'a' && c <= 'z': // true, false, null; the reader knows
		default:
			return false
		}
	}
	return true
}
