// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"fmt"
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func TestCut(t *testing.T) {
	for _, c := range []struct {
		cidr        string
		n           int
		first, last string
	}{
		{"10.244.0.0/16", 1, "10.244.0.0/24", "10.244.0.0/24"},
		{"10.244.0.0/16", 256, "10.244.0.0/24", "10.244.255.0/24"},
		{"10.244.0.0/16", 257, "10.244.0.0/25", "10.244.128.0/25"},
		{"100.64.0.0/10", 5000, "100.64.0.0/24", "100.83.135.0/24"},
		{"10.244.7.9/26", 2, "10.244.7.0/27", "10.244.7.32/27"},
		{"fd00::/48", 3, "fd00::/64", "fd00:0:0:2::/64"},
	} {
		got, err := cut(c.cidr, c.n)
		if err != nil {
			t.Errorf("%s/%d: %v", c.cidr, c.n, err)
			continue
		}
		if len(got) != c.n || got[0].String() != c.first || got[c.n-1].String() != c.last {
			t.Errorf("%s for %d: %v … %v, want %s … %s", c.cidr, c.n, got[0], got[c.n-1], c.first, c.last)
		}
	}
	for _, bad := range []struct {
		cidr string
		n    int
	}{{"10.0.0.0/26", 8}, {"nonsense", 1}} {
		if _, err := cut(bad.cidr, bad.n); err == nil {
			t.Errorf("%s was cut for %d", bad.cidr, bad.n)
		}
	}
}

func FuzzCut(f *testing.F) {
	f.Add("10.244.0.0/16", 300)
	f.Add("fd00::/48", 3)
	f.Fuzz(func(t *testing.T, cidr string, n int) {
		n = max(1, n%1000)
		got, err := cut(cidr, n)
		if err != nil {
			return
		}
		for i := range got[1:] {
			if got[i].Overlaps(got[i+1]) {
				t.Fatalf("%s for %d: %v and %v overlap", cidr, n, got[i], got[i+1])
			}
		}
	})
}

func TestPool(t *testing.T) {
	p := newPool(netip.MustParsePrefix("10.0.0.0/28"))
	p.claim("claimed", "10.0.0.3")
	p.claim("elsewhere", "10.1.0.3")
	seen := map[netip.Addr]bool{}
	for i := range 12 {
		a, err := p.take(types.UID(fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		if seen[a] || a == netip.MustParseAddr("10.0.0.3") || !p.prefix.Contains(a) {
			t.Errorf("address %v", a)
		}
		seen[a] = true
	}
	if a, err := p.take("claimed"); err != nil || a.String() != "10.0.0.3" {
		t.Errorf("claimed address is %v, %v", a, err)
	}
	if a, err := p.take("one more"); err == nil {
		t.Errorf("full pool gave %v", a)
	}
	p.release("5")
	if _, err := p.take("one more"); err != nil {
		t.Error(err)
	}
}
