// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"strings"
	"testing"
)

// TestBeside has a node of two families be reached by both, on the link that it is reached on.
func TestBeside(t *testing.T) {
	links := func(text ...string) (out [][]netip.Addr) {
		for _, link := range text {
			var all []netip.Addr
			for a := range strings.FieldsSeq(link) {
				all = append(all, netip.MustParseAddr(a))
			}
			out = append(out, all)
		}
		return out
	}
	for _, c := range []struct{ what, one, want string }{
		{"the first that is not the link's alone", "192.0.2.1", "2001:db8::1"},
		{"IPv4 beside IPv6", "2001:db8::2", "192.0.2.1"},
		{"another link's is none", "198.51.100.1", "invalid IP"},
		{"loopback has none that others may call", "127.0.0.1", "invalid IP"},
		{"an address that is nowhere", "192.0.2.9", "invalid IP"},
	} {
		got := beside(netip.MustParseAddr(c.one), links("127.0.0.1 ::1", "198.51.100.1 fe80::1", "192.0.2.1 fe80::2 2001:db8::1 2001:db8::2"))
		if got.String() != c.want {
			t.Errorf("%s: beside %s is %s, want %s", c.what, c.one, got, c.want)
		}
	}
}
