// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package servicecidr

import (
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	finalizer = "networking.k8s.io/service-cidr-finalizer"
	allocator = "ipallocator.k8s.io" // marks IPAddresses that belong to services
)

// step is what to do with a range next.
type step int

const (
	ready   step = iota // the server may allocate from it
	held                // it is deleted, but some addresses in use are in no other range
	release             // it may be deleted
)

// decide returns what to do with a range, given all ranges (including itself) and the addresses in use.
func decide(c *networkingv1.ServiceCIDR, all []*networkingv1.ServiceCIDR, used []netip.Addr) step {
	if c.DeletionTimestamp == nil {
		return ready
	}
	others := func(p netip.Prefix) bool {
		return slices.ContainsFunc(all, func(o *networkingv1.ServiceCIDR) bool {
			return o.Name != c.Name && slices.ContainsFunc(prefixes(o), func(q netip.Prefix) bool {
				return q.Bits() <= p.Bits() && q.Contains(p.Addr())
			})
		})
	}
	own := prefixes(c)
	if !slices.ContainsFunc(own, func(p netip.Prefix) bool { return !others(p) }) {
		return release // every address in use is in another range too
	}
	for _, ip := range used {
		in := func(p netip.Prefix) bool { return p.Contains(ip) }
		if slices.ContainsFunc(own, in) && !others(netip.PrefixFrom(ip, ip.BitLen())) {
			return held
		}
	}
	return release
}

// condition returns the range's condition for a step.
func (s step) condition(now metav1.Time) metav1.Condition {
	c := metav1.Condition{
		Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, LastTransitionTime: now,
		Message: "Kubernetes Service CIDR is ready",
	}
	if s == held {
		c.Status, c.Reason = metav1.ConditionFalse, networkingv1.ServiceCIDRReasonTerminating
		c.Message = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR"
	}
	return c
}

// same compares conditions without their times.
func same(a, b *metav1.Condition) bool {
	return a != nil && a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

func prefixes(c *networkingv1.ServiceCIDR) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range c.Spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

// touches reports whether an address is in a range.
func touches(c *networkingv1.ServiceCIDR, ip netip.Addr) bool {
	return slices.ContainsFunc(prefixes(c), func(p netip.Prefix) bool { return p.Contains(ip) })
}

// overlap reports whether ranges have addresses in common.
func overlap(a, b *networkingv1.ServiceCIDR) bool {
	return slices.ContainsFunc(prefixes(a), func(p netip.Prefix) bool {
		return slices.ContainsFunc(prefixes(b), p.Overlaps)
	})
}
