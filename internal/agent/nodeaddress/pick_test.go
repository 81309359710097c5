// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodeaddress

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// machine reads a machine: its links as "NAME ADDRESS…" with a ! behind what is passing, a name in brackets is down; lo is there.
func machine(links ...string) (v View) {
	for i, text := range append([]string{"lo 127.0.0.1 ::1"}, links...) {
		fields := strings.Fields(text)
		name := strings.Trim(fields[0], "()")
		v.Links = append(v.Links, Link{Index: i + 1, Name: name, Up: name == fields[0], Loopback: i == 0})
		for _, a := range fields[1:] {
			ip := strings.TrimSuffix(a, "!")
			v.Addresses = append(v.Addresses, Address{Link: i + 1, IP: netip.MustParseAddr(ip), Passing: ip != a})
		}
	}
	return v
}

// sends has the machine send to the world by these; the first may be the server's.
func (v View) sends(server bool, sources ...string) View {
	for i, a := range sources {
		v.Routes = append(v.Routes, Route{Source: netip.MustParseAddr(a), Wanted: !server || i == 0})
	}
	return v
}

// world has it send to the world so, and to the server not at all.
func (v View) world(source string) View {
	v.Routes = append(v.Routes, Route{Source: netip.MustParseAddr(source)})
	return v
}

func addressesOf(text string) (out []netip.Addr) {
	for a := range strings.FieldsSeq(text) {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func TestPick(t *testing.T) {
	one, both := Options{}, Options{
		Both: true, Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/56")},
		Services: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")},
	}
	const lan, lan6 = "192.0.2.1", "2001:db8::1"
	for _, c := range []struct {
		what, now, want string
		held            bool
		o               Options
		v               View
	}{
		{what: "the one by which it sends", want: "192.0.2.9", o: one, v: machine("eth0 192.0.2.1", "wlan0 192.0.2.9").sends(false, "192.0.2.9")},
		{what: "one family, if nobody wants both", want: lan, o: one, v: machine("eth0 192.0.2.1 2001:db8::1").sends(false, lan, lan6)},
		{what: "both", want: lan + " " + lan6, o: both, v: machine("eth0 192.0.2.1 2001:db8::1").sends(false, lan, lan6)},
		{what: "both without a route of the other", want: lan + " " + lan6, o: both, v: machine("eth0 192.0.2.1 2001:db8::1").sends(false, lan)},
		{what: "the other on the same link alone", want: lan, o: both, v: machine("eth0 192.0.2.1", "eth1 2001:db8::1").sends(false, lan, lan6)},
		{what: "IPv6 alone", want: lan6, o: both, v: machine("eth0 2001:db8::1").sends(false, lan6)},
		{what: "nothing of a link's own", want: lan, o: both, v: machine("eth0 169.254.1.1 192.0.2.1 fe80::1").sends(false, lan)},
		{what: "nothing that passes", want: lan, o: both, v: machine("eth0 192.0.2.1 2001:db8::1!").sends(false, lan, lan6)},
		{what: "no temporary address, though it sends by it", want: "2001:db8::2", o: one,
			v: machine("eth0 2001:db8::1! 2001:db8::2").sends(false, lan6)},
		{what: "no address that is deprecated, though it sends by it", want: "192.0.2.2", o: one,
			v: machine("eth0 192.0.2.1! 192.0.2.2").sends(false, lan)},
		{what: "no Service's", want: lan, o: both, v: machine("eth0 192.0.2.1 fd00:96::a").sends(false, lan)},
		{what: "no pod's beside the node's", want: lan, o: both, v: machine("eth0 192.0.2.1 fd00:244::a").sends(false, lan)},
		{what: "a pod's, in a machine that is one", want: "10.244.0.5", o: both, v: machine("eth0 10.244.0.5").sends(false, "10.244.0.5")},
		{what: "without a route the first", want: lan, o: one,
			v: machine("veth1 192.0.2.7", "mortise0 10.244.0.1", "mortise-dns 10.96.0.10", "(eth1) 192.0.2.8", "eth0 192.0.2.1")},
		{what: "without a route, IPv6 at last", want: lan6, o: one, v: machine("mortise0 10.244.0.1", "eth0 2001:db8::1")},
		{what: "no route of Mortise's own", want: lan, o: one, v: machine("mortise0 10.250.0.1", "eth0 192.0.2.1").sends(false, "10.250.0.1")},
		{what: "nothing", want: "", o: both, v: machine("eth0 fe80::1")},
		{what: "by which it reaches the server", want: "192.0.2.9", o: one,
			v: machine("eth0 192.0.2.1", "eth1 192.0.2.9").sends(true, "192.0.2.9", lan)},
		{what: "the server's machine", want: "127.0.0.1", o: one, v: machine("eth0 192.0.2.1").sends(true, "127.0.0.1", lan)},
		{what: "no route to the server yet", want: lan, o: one, v: machine("eth0 192.0.2.1").sends(true)},

		{what: "another lease", now: lan, want: "192.0.2.5", o: one, v: machine("eth0 192.0.2.5").sends(false, "192.0.2.5")},
		{what: "another lease beside the old one", now: lan, want: "192.0.2.5", o: one,
			v: machine("eth0 192.0.2.1 192.0.2.5").sends(false, "192.0.2.5")},
		{what: "a first address", now: "127.0.0.1", want: lan, o: one, v: machine("eth0 192.0.2.1")},
		{what: "another family comes", now: lan, want: lan + " " + lan6, o: both,
			v: machine("eth0 192.0.2.1 2001:db8::1").sends(false, lan, lan6)},
		{what: "a newer address of IPv6", now: lan + " " + lan6, want: lan + " " + lan6, o: both,
			v: machine("eth0 192.0.2.1 2001:db8::2 2001:db8::1").sends(false, lan, "2001:db8::2")},
		{what: "a newer prefix of IPv6", now: lan + " " + lan6, want: lan + " 2001:db8:1::2", o: both,
			v: machine("eth0 192.0.2.1 2001:db8:1::2 2001:db8::1!").sends(false, lan, "2001:db8:1::2")},
		{what: "all is lost", now: lan, want: lan, o: one, v: machine("eth0 fe80::1")},
		{what: "all is lost of both", now: lan + " " + lan6, want: lan + " " + lan6, o: both, v: machine("(eth0)")},
		{what: "the route is lost", now: lan, want: lan, o: one, v: machine("docker0 172.17.0.1", "eth0 192.0.2.1")},
		{what: "all but what is no route is lost", now: lan, want: lan, o: one, v: machine("docker0 172.17.0.1", "(eth0) 192.0.2.1")},
		{what: "the first family is lost", now: lan + " " + lan6, want: lan + " " + lan6, held: true, o: both,
			v: machine("eth0 2001:db8::1").sends(false, lan6)},
		{what: "the second family is lost", now: lan + " " + lan6, want: lan + " " + lan6, held: true, o: both,
			v: machine("eth0 192.0.2.1").sends(false, lan)},
		{what: "one is replaced, the other is lost", now: lan + " " + lan6, want: "192.0.2.5 " + lan6, held: true, o: both,
			v: machine("eth0 192.0.2.5").sends(false, "192.0.2.5")},
		{what: "the route to the server is lost", now: "192.0.2.9", want: "192.0.2.9", held: true, o: one,
			v: machine("eth0 192.0.2.1", "eth1 fe80::1").world(lan)},
	} {
		next, held := Pick(addressesOf(c.now), c.v, c.o)
		if got := strings.Trim(fmt.Sprint(next), "[]"); got != c.want || held != c.held {
			t.Errorf("%s: picked %q, held: %v; want %q, %v", c.what, got, held, c.want, c.held)
		}
	}
}
