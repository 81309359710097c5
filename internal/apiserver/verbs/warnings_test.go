// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestWarnings tells how many warnings are sent, and how long the first is, by how many there are and how long they are.
func TestWarnings(t *testing.T) {
	for _, c := range []struct {
		name          string
		count, length int
		sent, first   int
	}{
		{"few", 3, 100, 3, 100},
		{"one of the size of all", 1, 4096, 1, 4096},
		{"one too long", 1, 4097, 1, 256},
		{"all just fit", 16, 256, 16, 256},
		{"long ones are cut", 10, 500, 10, 256},
		{"too many", 100, 100, 41, 100},
		{"too many and too long", 30, 1000, 16, 256},
	} {
		w := &warnings{header: http.Header{}}
		for i := range c.count {
			text := fmt.Sprintf("%04d", i)
			text += strings.Repeat("\u00e4", c.length-len(text))
			w.AddWarning("", text)
			w.AddWarning("", text) // is said once
		}
		got := w.header.Values("Warning")
		if len(got) != c.sent {
			t.Errorf("%s: %d sent, want %d", c.name, len(got), c.sent)
			continue
		}
		if n := len([]rune(got[0])) - len(`299 - ""`); n != c.first {
			t.Errorf("%s: the first has %d runes, want %d", c.name, n, c.first)
		}
	}
	w := &warnings{header: http.Header{}}
	w.AddWarning("", "")
	w.AddWarning("agent", `a "quoted" text`)
	if got := w.header.Values("Warning"); len(got) != 1 || got[0] != `299 agent "a \"quoted\" text"` {
		t.Errorf("got %q", got)
	}
}
