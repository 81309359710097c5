// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package proxy implements Services on a node, by rules in the kernel's nftables, or by iptables if the machine lacks it:
// as kube-proxy does in its modes of these names. Reading order:
//
//	service.go    what rules must know of a Service, port by port, in one IP family
//	endpoint.go   where it may be sent, from its EndpointSlices
//	choose.go     which of these endpoints this node uses: traffic policies, topology, endpoints that terminate
//	rule.go       what a rule is: a match and verdicts, in no backend's words
//	plan.go       THE rules of one Service: chains, affinity sets, elements of maps
//	table.go      one family's rules: what changed between two plans, or all of it when that is not known; what a backend is
//	nft.go        one backend: a table of nftables
//	nftrules.go   how nftables says a rule
//	nftskeleton.go  what surrounds those of Services there: hooks, dispatch by map, reject, masquerade
//	iptables.go   the other: chains in the tables of iptables; iptrules.go and iptskeleton.go as above
//	proxy.go      Options and Run: follow Services, EndpointSlices and the node; one transaction for what changed meanwhile
//	health.go     the health-check node ports of load balancers
//	conntrack.go  flows of UDP that point to an endpoint that is gone
//
// Service, endpoint, choose and plan are pure. A plan belongs to one Service and family, so that a change of one Service
// touches its elements and chains alone; only at the start, after a transaction that failed, and when the node itself
// changes is everything written, and then in one transaction, so that no packet meets half of it (by iptables, in one for each of its
// tables: filter first).
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
// A port that is reached by other addresses too, or that has affinity or more endpoints than there are such chains, has chains
// of its own.
//
// By iptables elements are rules, and those of a Service with few endpoints are all that it has:
//
//	-A MORTISE-SERVICES -d 10.96.0.0/16 -j MORTISE-MARK-FOREIGN
//	-A MORTISE-SERVICES -d 0.0.0.7/0.0.0.255 -j MORTISE-SERVICES-07
//	-A MORTISE-SERVICES-07 -d 10.96.0.7/32 -p tcp -m tcp --dport 80 -m statistic --mode random --probability 0.5 \
//	  -j DNAT --to-destination 10.244.0.2:8080
//	-A MORTISE-SERVICES-07 -d 10.96.0.7/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.244.1.2:8080
//
// The fewer rules a table has, and the smaller they are, the better: with a rule that comes, a kernel of nftables looks at all that are
// reached from each of the table's hooks, and one without it copies all.
//
// The rules stay when Mortise stops, so that a restart interrupts no connection; Remove removes them.
package proxy
