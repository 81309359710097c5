// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package proxy implements Services on a node, with rules in the kernel's nftables, or in iptables if the machine lacks it, like kube-proxy
// in its modes of these names. Reading order:
//
//	service.go    a Service as the rules need it, port by port, in one IP family
//	endpoint.go   its endpoints, from its EndpointSlices
//	choose.go     the endpoints that this node uses: traffic policies, topology, terminating endpoints
//	rule.go       rules: a match and verdicts, independent of the backend
//	plan.go       THE rules of one Service: chains, affinity sets, elements of maps
//	table.go      one family's rules: the difference of two plans, or all rules if that is unknown; the interface of backends
//	nft.go        one backend: an nftables table
//	nftrules.go   rules in nftables' syntax
//	nftskeleton.go  the rules around those of Services: hooks, dispatch by map, reject, masquerade
//	iptables.go   the other backend: chains in the iptables tables; iptrules.go and iptskeleton.go as above
//	proxy.go      Options and Run: watch Services, EndpointSlices and the node; one transaction for all changes since the last one
//	health.go     the health-check node ports of load balancers
//	conntrack.go  UDP flows to removed endpoints
//
// Service, endpoint, choose and plan are pure. A plan belongs to one Service and family, so that a change of one Service
// affects only its elements and chains. Only at the start, after a failed transaction, and when the node itself changes does the proxy
// write all rules, in one transaction, so that every packet meets either the old or the new rules (with iptables, in one transaction for
// each of its tables: filter first).
//
// An example, by nftables. Service ns/web (10.96.0.7, port 80) with the endpoints 10.244.0.2:8080 and 10.244.1.2:8080 is four elements:
//
//	set cluster-ips { 10.96.0.7 }
//	map service-ips { 10.96.0.7 . tcp . 80 : goto draw-2 }
//	map backend-0 { 10.96.0.7 . tcp . 80 : 10.244.0.2 . 8080 }
//	map backend-1 { 10.96.0.7 . tcp . 80 : 10.244.1.2 . 8080 }
//
// All Services with as many endpoints share the chain that draws one of them:
//
//	chain draw-2 { numgen random mod 2 vmap { 0 : goto backend-0, 1 : goto backend-1 } }
//	chain backend-0 { dnat ip addr . port to ip daddr . meta l4proto . th dport map @backend-0 }
//
// A port with other addresses than the Service's, with affinity, or with more endpoints than there are shared chains, has its own
// chains.
//
// With iptables, elements are rules, and a Service with few endpoints has no others:
//
//	-A MORTISE-SERVICES -d 10.96.0.0/16 -j MORTISE-MARK-FOREIGN
//	-A MORTISE-SERVICES -d 0.0.0.7/0.0.0.255 -j MORTISE-SERVICES-07
//	-A MORTISE-SERVICES-07 -d 10.96.0.7/32 -p tcp -m tcp --dport 80 -m statistic --mode random --probability 0.5 \
//	  -j DNAT --to-destination 10.244.0.2:8080
//	-A MORTISE-SERVICES-07 -d 10.96.0.7/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.244.1.2:8080
//
// A small table is a fast one: for a new rule, an nftables kernel checks all rules that are reachable from each of the table's hooks, and
// an iptables kernel copies all.
//
// The rules stay when Mortise stops, so that a restart interrupts no connection; Remove removes them.
package proxy
