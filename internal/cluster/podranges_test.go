// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"testing"

	"github.com/mortise-dev/mortise/embed/options"
)

// TestPodRanges reads one range or one of each IP family, with the masks that fit.
func TestPodRanges(t *testing.T) {
	masks := func(all, four, six int) (m options.Masks) {
		for to, n := range map[**int]int{&m.All: all, &m.IPv4: four, &m.IPv6: six} {
			if n != 0 {
				*to = &n
			}
		}
		return m
	}
	for _, c := range []struct {
		text  string
		masks options.Masks
		want  string
	}{
		{"10.244.1.0/16", masks(0, 0, 0), "[10.244.0.0/16] {0 0}"},
		{"10.244.0.0/16", masks(26, 0, 0), "[10.244.0.0/16] {26 26}"},
		{"10.244.0.0/16", masks(0, 26, 0), "[10.244.0.0/16] {26 0}"},
		{"10.244.0.0/16, fd00:1::/56", masks(0, 0, 0), "[10.244.0.0/16 fd00:1::/56] {0 0}"},
		{"fd00:1::/56,10.244.0.0/16", masks(0, 25, 62), "[fd00:1::/56 10.244.0.0/16] {25 62}"},
		{"10.244.0.0/16,10.245.0.0/16", masks(0, 0, 0), `pod CIDR "10.244.0.0/16,10.245.0.0/16": want one range, or one of each IP family`},
		{"x", masks(0, 0, 0), `pod CIDR: netip.ParsePrefix("x"): no '/'`},
		{"10.244.0.0/16", masks(8, 0, 0), "a node's part of pod CIDR 10.244.0.0/16 cannot be a /8"},
		{"10.244.0.0/16", masks(33, 0, 0), "a node's part of pod CIDR 10.244.0.0/16 cannot be a /33"},
		{"fd00:1::/40", masks(64, 0, 0), "pod CIDR fd00:1::/40 has more than 65536 parts of /64"},
		{"10.244.0.0/16,fd00:1::/56", masks(26, 0, 0), "usage of --node-cidr-mask-size is not allowed with dual-stack clusters"},
		{"10.244.0.0/16", masks(26, 26, 0), "usage of --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6 is not allowed if --node-cidr-mask-size is set. For dual-stack clusters please unset it and use IPFamily specific flags"},
		{"10.244.0.0/16", masks(0, 0, 64), "usage of --node-cidr-mask-size-ipv6 is not allowed for a single-stack IPv4 cluster"},
		{"fd00:1::/56", masks(0, 24, 0), "usage of --node-cidr-mask-size-ipv4 is not allowed for a single-stack IPv6 cluster"},
	} {
		ranges, cut, err := podRanges(c.text, c.masks)
		got := fmt.Sprint(ranges, cut)
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%q: got %s, want %s", c.text, got, c.want)
		}
	}
}
