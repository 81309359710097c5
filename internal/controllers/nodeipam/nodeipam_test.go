// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"net/netip"
	"testing"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

func TestScenarios(t *testing.T) {
	controllertest.Run(t, "testdata/*.txtar", controllers.Options{Cluster: controllers.Cluster{
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/23")},
	}}, Controller())
}

func TestPool(t *testing.T) {
	p, err := newPool(netip.MustParsePrefix("fd00:1::/60"), 64)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[netip.Prefix]bool{}
	for i := range 16 {
		s, ok := p.take("n")
		if !ok || seen[s] || p.index(s) != i || !p.cluster.Overlaps(s) {
			t.Fatalf("take %d: %v, %v", i, s, ok)
		}
		seen[s] = true
	}
	if s, ok := p.take("n"); ok {
		t.Fatalf("took %v from a full pool", s)
	}
	p.release(netip.MustParsePrefix("fd00:1:0:5::/64"), "other")
	if _, ok := p.take("n"); ok {
		t.Fatal("released what is another's")
	}
	p.release(netip.MustParsePrefix("fd00:1:0:5::/64"), "n")
	if s, ok := p.take("m"); !ok || s.String() != "fd00:1:0:5::/64" {
		t.Fatalf("took %v, %v after a release", s, ok)
	}
	if _, err := newPool(netip.MustParsePrefix("10.0.0.0/24"), 16); err == nil {
		t.Fatal("a mask wider than the range was accepted")
	}
}
