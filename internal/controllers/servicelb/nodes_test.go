// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package servicelb

import (
	"net/netip"
	"testing"
)

// TestAnnouncer: neighbouring addresses of a pool are spread over the nodes, and when a node goes only its addresses move.
func TestAnnouncer(t *testing.T) {
	for _, first := range []string{"192.0.2.1", "fd00:70::f0"} {
		three := &view{members: []member{{name: "one", ready: true}, {name: "three", ready: true}, {name: "two", ready: true}}}
		gone := &view{members: three.members, silent: map[string]bool{"two": true}}
		count := map[string]int{}
		a := netip.MustParseAddr(first)
		for range 90 {
			before := three.announcer(a, "", nil)
			count[before]++
			after := gone.announcer(a, before, nil)
			if before != "two" && after != before || after == "two" || after == "" {
				t.Errorf("%s moves from %s to %q when two is silent", a, before, after)
			}
			a = a.Next()
		}
		for _, m := range three.members {
			if count[m.name] < 15 {
				t.Errorf("node %s has %d of 90 addresses from %s", m.name, count[m.name], first)
			}
		}
	}
}

// TestAnnouncerOfLocalTraffic: a node with ready endpoints announces the address, if there is none one with endpoints that are terminating.
func TestAnnouncerOfLocalTraffic(t *testing.T) {
	v := &view{members: []member{{name: "one", ready: true}, {name: "three", ready: true}, {name: "two", ready: true}}}
	a := netip.MustParseAddr("192.0.2.1")
	for _, c := range []struct {
		local map[string]bool
		want  string
	}{
		{map[string]bool{"one": false, "two": true}, "two"},
		{map[string]bool{"three": false}, "three"},
		{map[string]bool{"one": true, "three": false}, "one"},
	} {
		for _, present := range []string{"", "one", "two", "three"} {
			if got := v.announcer(a, present, c.local); got != c.want {
				t.Errorf("with endpoints on %v, %s announces the address after %q, want %s", c.local, got, present, c.want)
			}
		}
	}
}
