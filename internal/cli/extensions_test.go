// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"
)

// TestErrorLine: a table shows the cause of an error, which stands at its end.
func TestErrorLine(t *testing.T) {
	long := strings.Repeat("x", widest)
	for _, c := range []struct {
		text, want string
		wide       bool
	}{
		{text: "", want: ""},
		{text: "connection\n refused", want: "connection refused"},
		{text: long, want: long},
		{text: `Post "https://hook.default.svc:443/validate?timeout=10s": dial tcp 10.96.0.7:443: connect: connection refused`,
			want: "…dial tcp 10.96.0.7:443: connect: connection refused"},
		{text: "a: b", want: "a: b", wide: true},
		{text: long + ": refused", want: "…refused"},
		{text: long + ": refused", want: long + ": refused", wide: true},
		{text: "first " + long, want: "…" + long},
		{text: "call: " + "é" + long[1:], want: "…" + long[1:]},
	} {
		if got := line(c.text, c.wide); got != c.want {
			t.Errorf("%q, wide %t: %q, want %q", c.text, c.wide, got, c.want)
		}
	}
}
