// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package externalmetrics

import "strings"

// matches reports whether a pattern, in which '*' stands for any characters, matches all of a name.
func matches(pattern, name string) bool {
	head, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == name
	}
	name, ok := strings.CutPrefix(name, head)
	if !ok {
		return false
	}
	for {
		part, more, again := strings.Cut(rest, "*")
		if !again {
			return strings.HasSuffix(name, part)
		}
		i := strings.Index(name, part) // the first one leaves most for the others
		if i < 0 {
			return false
		}
		name, rest = name[i+len(part):], more
	}
}

// matchesAny reports whether one of the patterns matches, or there are none.
func matchesAny(patterns []string, name string) bool {
	for _, p := range patterns {
		if matches(p, name) {
			return true
		}
	}
	return len(patterns) == 0
}
