// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"net/netip"
	"slices"
	"strings"
)

// LoadBalancerClass is the spec.loadBalancerClass of Services that the built-in controller serves also beside an external cloud.
const LoadBalancerClass = "mortise.dev/service-lb"

// Annotations of load balancers. A node writes LoadBalancerAddressesAnnotation on its Node: the addresses at which the network reaches the
// machine, separated by commas, if they are not the Node's internal IPs. The controller writes LoadBalancerNodesAnnotation on a Service:
// the node that announces each of its addresses, as ADDRESS=NODE, separated by commas. Readers leave out what is invalid, and return no
// error.
const (
	LoadBalancerAddressesAnnotation = "mortise.dev/load-balancer-addresses"
	LoadBalancerNodesAnnotation     = "mortise.dev/load-balancer-nodes"
)

// LoadBalancerAddresses reads a LoadBalancerAddressesAnnotation. It leaves out invalid ones.
func LoadBalancerAddresses(text string) (out []netip.Addr) {
	for part := range strings.SplitSeq(text, ",") {
		if a, err := netip.ParseAddr(strings.TrimSpace(part)); err == nil && a.Zone() == "" && !slices.Contains(out, a.Unmap()) {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// LoadBalancerNodes reads a LoadBalancerNodesAnnotation: the node of each address. It leaves out invalid entries.
func LoadBalancerNodes(text string) map[netip.Addr]string {
	out := map[netip.Addr]string{}
	for part := range strings.SplitSeq(text, ",") {
		address, node, ok := strings.Cut(strings.TrimSpace(part), "=")
		if a, err := netip.ParseAddr(address); ok && err == nil && a.Zone() == "" && node != "" {
			out[a.Unmap()] = node
		}
	}
	return out
}

// FormatLoadBalancerNodes returns the LoadBalancerNodesAnnotation for the nodes of addresses; empty: no node announces any.
func FormatLoadBalancerNodes(nodes map[netip.Addr]string) string {
	texts := make([]string, 0, len(nodes))
	for a, node := range nodes {
		texts = append(texts, a.String()+"="+node)
	}
	slices.Sort(texts)
	return strings.Join(texts, ",")
}
