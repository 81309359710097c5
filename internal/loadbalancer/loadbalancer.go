// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package loadbalancer has what the controller of load balancers and the nodes write to each other: annotations, and the class of the
// Services that the controller serves. It does no I/O.
package loadbalancer

import (
	"net/netip"
	"slices"
	"strings"
)

// Class is the spec.loadBalancerClass of Services that the built-in controller serves also beside an external cloud.
const Class = "mortise.dev/service-lb"

// Annotations. A node writes AddressesAnnotation on its Node: the addresses at which the network reaches the machine, separated by commas,
// if they are not the Node's internal IPs. The controller writes NodesAnnotation on a Service: which node announces which of its addresses,
// as ADDRESS=NODE, separated by commas.
const (
	AddressesAnnotation = "mortise.dev/load-balancer-addresses"
	NodesAnnotation     = "mortise.dev/load-balancer-nodes"
)

// Addresses reads an AddressesAnnotation. It leaves out invalid ones.
func Addresses(text string) (out []netip.Addr) {
	for part := range strings.SplitSeq(text, ",") {
		if a, err := netip.ParseAddr(strings.TrimSpace(part)); err == nil && a.Zone() == "" && !slices.Contains(out, a.Unmap()) {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// Nodes reads a NodesAnnotation: the node of each address. It leaves out invalid entries.
func Nodes(text string) map[netip.Addr]string {
	out := map[netip.Addr]string{}
	for part := range strings.SplitSeq(text, ",") {
		address, node, ok := strings.Cut(strings.TrimSpace(part), "=")
		if a, err := netip.ParseAddr(address); ok && err == nil && a.Zone() == "" && node != "" {
			out[a.Unmap()] = node
		}
	}
	return out
}

// FormatNodes returns the NodesAnnotation for the nodes of addresses; empty: none announces any.
func FormatNodes(nodes map[netip.Addr]string) string {
	texts := make([]string, 0, len(nodes))
	for a, node := range nodes {
		texts = append(texts, a.String()+"="+node)
	}
	slices.Sort(texts)
	return strings.Join(texts, ",")
}
