// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/node"
)

// nodeMasks are how large a node's part of the pods' addresses is; 0: the default.
type nodeMasks struct{ IPv4, IPv6 int }

// podRanges reads the ranges of pods' addresses, one or one of each family, and how they are cut.
func podRanges(text string, masks options.Masks) ([]netip.Prefix, nodeMasks, error) {
	out, err := node.ParsePodCIDRs(text)
	if err != nil {
		return nil, nodeMasks{}, err
	}
	cut, err := masksByFamily(out, masks)
	if err != nil {
		return nil, nodeMasks{}, err
	}
	for _, p := range out {
		bits := cut.IPv4
		if p.Addr().Is6() {
			bits = cut.IPv6
		}
		switch {
		case bits == 0:
		case bits < p.Bits() || bits > p.Addr().BitLen():
			return nil, nodeMasks{}, fmt.Errorf("a node's part of pod CIDR %s cannot be a /%d", p, bits)
		case bits-p.Bits() > 16:
			return nil, nodeMasks{}, fmt.Errorf("pod CIDR %s has more than %d parts of /%d", p, 1<<16, bits)
		}
	}
	return out, cut, nil
}

// masksByFamily says which mask is for which family, and refuses those that none is for.
func masksByFamily(ranges []netip.Prefix, masks options.Masks) (nodeMasks, error) {
	all, four, six := orZero(masks.All), orZero(masks.IPv4), orZero(masks.IPv6)
	switch {
	case len(ranges) > 1 && all != 0:
		return nodeMasks{}, errors.New("usage of --node-cidr-mask-size is not allowed with dual-stack clusters") // upstream's words
	case len(ranges) > 1:
		return nodeMasks{four, six}, nil
	case all != 0 && (four != 0 || six != 0):
		return nodeMasks{}, errors.New("usage of --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6 is not allowed if --node-cidr-mask-size is set. " +
			"For dual-stack clusters please unset it and use IPFamily specific flags") // upstream's words
	case all != 0:
		return nodeMasks{all, all}, nil
	case four != 0 && ranges[0].Addr().Is6():
		return nodeMasks{}, errors.New("usage of --node-cidr-mask-size-ipv4 is not allowed for a single-stack IPv6 cluster") // upstream's words
	case six != 0 && ranges[0].Addr().Is4():
		return nodeMasks{}, errors.New("usage of --node-cidr-mask-size-ipv6 is not allowed for a single-stack IPv4 cluster") // upstream's words
	}
	return nodeMasks{four, six}, nil
}
