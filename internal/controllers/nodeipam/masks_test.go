// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// TestMasks checks masks against one range, or one of each IP family.
func TestMasks(t *testing.T) {
	for _, c := range []struct {
		ranges string
		masks  masks
		want   string // the masks of the ranges, or the error
	}{
		{"", masks{26, 0, 0}, "[]"},
		{"10.244.0.0/16", masks{0, 0, 0}, "[0]"},
		{"10.244.0.0/16", masks{26, 0, 0}, "[26]"},
		{"10.244.0.0/16", masks{0, 26, 0}, "[26]"},
		{"fd00:1::/56", masks{64, 0, 0}, "[64]"},
		{"10.244.0.0/16 fd00:1::/56", masks{0, 0, 0}, "[0 0]"},
		{"fd00:1::/56 10.244.0.0/16", masks{0, 25, 62}, "[62 25]"},
		{"10.244.0.0/16", masks{8, 0, 0}, "a node's part of pod CIDR 10.244.0.0/16 cannot be a /8"},
		{"10.244.0.0/16", masks{33, 0, 0}, "a node's part of pod CIDR 10.244.0.0/16 cannot be a /33"},
		{"fd00:1::/40", masks{64, 0, 0}, "pod CIDR fd00:1::/40 has more than 65536 parts of /64"},
		{"10.244.0.0/16 fd00:1::/56", masks{26, 0, 0}, "usage of --node-cidr-mask-size is not allowed with dual-stack clusters"},
		{"10.244.0.0/16", masks{26, 26, 0}, "usage of --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6 is not allowed if --node-cidr-mask-size is set. For dual-stack clusters please unset it and use IPFamily specific flags"},
		{"10.244.0.0/16", masks{0, 0, 64}, "usage of --node-cidr-mask-size-ipv6 is not allowed for a single-stack IPv4 cluster"},
		{"fd00:1::/56", masks{0, 24, 0}, "usage of --node-cidr-mask-size-ipv4 is not allowed for a single-stack IPv6 cluster"},
	} {
		ranges, bits := []netip.Prefix{}, []int{}
		for _, text := range strings.Fields(c.ranges) {
			cidr := netip.MustParsePrefix(text)
			ranges, bits = append(ranges, cidr), append(bits, c.masks.of(cidr))
		}
		got := fmt.Sprint(bits)
		if err := c.masks.check(ranges); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s %+v: got %s, want %s", c.ranges, c.masks, got, c.want)
		}
	}
}
