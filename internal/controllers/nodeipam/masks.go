// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// masks are the sizes of a node's pod CIDRs, as prefix lengths; 0: the default.
type masks struct {
	all        int // for clusters with one IP family
	ipv4, ipv6 int
}

func (m *masks) declare() []controllers.Setting {
	const fields = "controllers.nodeIPAM."
	return []controllers.Setting{
		{
			Flag: "node-cidr-mask-size", Field: fields + "nodeCIDRMaskSize", Value: controllers.Value(&m.all), Optional: true,
			Usage: "Mask size of a node's pod address range in a single-stack cluster. Default: 24 for IPv4, 64 for IPv6.",
		},
		{
			Flag: "node-cidr-mask-size-ipv4", Field: fields + "nodeCIDRMaskSizeIPv4", Value: controllers.Value(&m.ipv4), Optional: true,
			Usage: "Mask size of a node's IPv4 pod address range. Default: 24.",
		},
		{
			Flag: "node-cidr-mask-size-ipv6", Field: fields + "nodeCIDRMaskSizeIPv6", Value: controllers.Value(&m.ipv6), Optional: true,
			Usage: "Mask size of a node's IPv6 pod address range. Default: 64.",
		},
	}
}

// of returns the mask that the settings give for a range; 0: none.
func (m *masks) of(cidr netip.Prefix) int {
	switch {
	case m.all != 0:
		return m.all
	case cidr.Addr().Is6():
		return m.ipv6
	}
	return m.ipv4
}

// check refuses masks that apply to no range, and those by which a range cannot be divided.
func (m *masks) check(ranges []netip.Prefix) error {
	switch {
	case len(ranges) == 0:
		return nil
	case len(ranges) > 1 && m.all != 0:
		return errors.New("usage of --node-cidr-mask-size is not allowed with dual-stack clusters") // upstream's words
	case m.all != 0 && (m.ipv4 != 0 || m.ipv6 != 0):
		return errors.New("usage of --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6 is not allowed if --node-cidr-mask-size is set. " +
			"For dual-stack clusters please unset it and use IPFamily specific flags") // upstream's words
	case len(ranges) == 1 && m.ipv4 != 0 && ranges[0].Addr().Is6():
		return errors.New("usage of --node-cidr-mask-size-ipv4 is not allowed for a single-stack IPv6 cluster") // upstream's words
	case len(ranges) == 1 && m.ipv6 != 0 && ranges[0].Addr().Is4():
		return errors.New("usage of --node-cidr-mask-size-ipv6 is not allowed for a single-stack IPv4 cluster") // upstream's words
	}
	for _, cidr := range ranges {
		switch bits := m.of(cidr); {
		case bits == 0:
		case bits < cidr.Bits() || bits > cidr.Addr().BitLen():
			return fmt.Errorf("a node's part of pod CIDR %s cannot be a /%d", cidr, bits)
		case bits-cidr.Bits() > 16:
			return fmt.Errorf("pod CIDR %s has more than %d parts of /%d", cidr, 1<<16, bits)
		}
	}
	return nil
}
