// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package servicelb

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func named(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "ns", Name: name}
}

func poolOf(t *testing.T, text string) (p pool) {
	t.Helper()
	if err := p.Set(text); err != nil {
		t.Fatal(err)
	}
	return p
}

func tcp(numbers ...int32) (out []port) {
	for _, n := range numbers {
		out = append(out, port{corev1.ProtocolTCP, n})
	}
	return out
}

func v4(name string, ports ...int32) claim {
	return claim{service: named(name), ports: tcp(ports...), families: []corev1.IPFamily{corev1.IPv4Protocol}}
}

// TestSettle: who gets what, one claim after the other, from a pool and from nodes.
func TestSettle(t *testing.T) {
	alone := v4("a", 80)
	alone.alone = true
	asks := v4("asks", 80)
	asks.address = netip.MustParseAddr("192.0.2.2")
	both := v4("both", 80)
	both.families = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
	nodes := offer{each: []netip.Addr{netip.MustParseAddr("192.0.2.8"), netip.MustParseAddr("fd00::8"), netip.MustParseAddr("192.0.2.9")},
		reserved: map[slot]string{{netip.MustParseAddr("192.0.2.9"), tcp(22)[0]}: "the SSH server of node b"}}
	for _, c := range []struct {
		name, pool string
		claims     []claim
		want       string
	}{
		{"own addresses", "192.0.2.1-192.0.2.2", []claim{v4("x", 80), v4("y", 80), v4("z", 80)},
			"192.0.2.1; 192.0.2.2; port 80/TCP of 192.0.2.1 belongs to the Service ns/x"},
		{"shared when there is no other", "192.0.2.1", []claim{v4("x", 80), v4("y", 81), v4("x", 80, 81)},
			"192.0.2.1; 192.0.2.1; port 81/TCP of 192.0.2.1 belongs to the Service ns/y"},
		{"alone", "192.0.2.1", []claim{alone, v4("y", 81)}, "192.0.2.1; 192.0.2.1 has a Service with another externalTrafficPolicy"},
		{"requested", "192.0.2.1-192.0.2.2", []claim{asks, v4("y", 80), v4("asks", 80)}, "192.0.2.2; 192.0.2.1; 192.0.2.2"},
		{"not there", "192.0.2.1", []claim{asks}, "192.0.2.2 is not in the pool"},
		{"both families", "192.0.2.1,2001:db8::/126", []claim{both}, "2001:db8::,192.0.2.1"},
		{"one of two families", "192.0.2.1", []claim{both}, "192.0.2.1 the pool has no IPv6 address"},
		{"nodes", "", []claim{both, v4("y", 81), v4("z", 80), v4("z", 82)},
			"fd00::8,192.0.2.8,192.0.2.9; 192.0.2.8,192.0.2.9; port 80/TCP of 192.0.2.8 belongs to the Service ns/both; 192.0.2.8,192.0.2.9"},
		{"reserved", "", []claim{v4("x", 22)}, "192.0.2.8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, o := newBook(), nodes
			if c.pool != "" {
				o = offer{pool: poolOf(t, c.pool)}
			}
			var got []string
			for _, claim := range c.claims {
				g := b.settle(claim, o)
				var texts []string
				for _, a := range g.addresses {
					texts = append(texts, a.String())
				}
				got = append(got, strings.TrimSpace(strings.Join(texts, ",")+" "+g.taken))
			}
			if s := strings.Join(got, "; "); s != c.want {
				t.Errorf("got  %s\nwant %s", s, c.want)
			}
		})
	}
}

// TestBook: whatever claims come and go, no slot has two owners, who waits is woken when a slot is free, and when all is settled nobody
// waits for what is free.
func TestBook(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 29))
		b := newBook()
		o := offer{pool: poolOf(t, "192.0.2.1-192.0.2.3")}
		if seed%3 == 0 {
			o = offer{each: []netip.Addr{netip.MustParseAddr("192.0.2.8"), netip.MustParseAddr("192.0.2.9")}}
		}
		claims, given := map[types.NamespacedName]claim{}, map[types.NamespacedName]granted{}
		var queue []types.NamespacedName
		for range 60 {
			name := fmt.Sprint("s", random.IntN(6))
			if c := v4(name, 80+int32(random.IntN(3))); random.IntN(3) > 0 {
				c.alone = random.IntN(4) == 0
				if random.IntN(3) == 0 {
					c.ports = append(c.ports, port{corev1.ProtocolUDP, c.ports[0].number})
				}
				claims[c.service] = c
				queue = append(queue, c.service)
			} else {
				delete(claims, c.service)
				delete(given, c.service)
				queue = append(queue, b.release(c.service)...)
			}
			for steps := 0; len(queue) > 0; steps++ {
				if steps > 500 {
					t.Fatalf("seed %d: it never settles", seed)
				}
				next := queue[0]
				queue = queue[1:]
				if c, ok := claims[next]; ok {
					g := b.settle(c, o)
					given[next] = g
					queue = append(queue, g.wake...)
				}
			}
			owners := map[slot]types.NamespacedName{}
			for name, g := range given {
				for _, a := range g.addresses {
					for _, p := range claims[name].ports {
						if other, taken := owners[slot{a, p}]; taken {
							t.Fatalf("seed %d: %s and %s have %s", seed, name, other, slot{a, p})
						}
						owners[slot{a, p}] = name
					}
				}
			}
			for name, g := range given {
				if (len(g.addresses) == 0) != (g.taken != "") {
					t.Fatalf("seed %d: %s got %v, and the reason is %q", seed, name, g.addresses, g.taken)
				}
				c := claims[name]
				if again := b.settle(c, o); !slices.Equal(again.addresses, g.addresses) {
					t.Fatalf("seed %d: %s had %v and would get %v", seed, name, g.addresses, again.addresses)
				}
			}
		}
	}
}

func TestParsePool(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "192.0.2.0/30": "192.0.2.0-192.0.2.3", "192.0.2.7": "192.0.2.7",
		"192.0.2.7 - 192.0.2.9,2001:db8::/127": "192.0.2.7-192.0.2.9,2001:db8::-2001:db8::1",
		"192.0.2.1/30":                         "!", "192.0.2.9-192.0.2.7": "!", "192.0.2.9-2001:db8::1": "!",
		"127.0.0.1": "!", "fe80::1": "!", "224.0.0.0/24": "!", "x": "!", "0.0.0.0/0": "!", "192.0.2.1,": "!", "::ffff:192.0.2.1": "192.0.2.1",
	} {
		var p pool
		if err := p.Set(text); (err != nil) != (want == "!") || err == nil && p.String() != want {
			t.Errorf("Set(%q) = %q, %v, want %q", text, p.String(), err, want)
		}
	}
}

// FuzzParsePool: what a pool accepts it prints in a form that it accepts again.
func FuzzParsePool(f *testing.F) {
	f.Add("192.0.2.0/24,2001:db8::1-2001:db8::9")
	f.Fuzz(func(t *testing.T, text string) {
		var p, again pool
		if p.Set(text) != nil {
			return
		}
		if err := again.Set(p.String()); err != nil || again.String() != p.String() {
			t.Errorf("%q: %q, then %q, %v", text, p.String(), again.String(), err)
		}
	})
}
