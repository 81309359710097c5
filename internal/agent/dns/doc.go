// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package dns is the cluster DNS of each node: it answers as CoreDNS does with the kubernetes, forward and cache plug-ins
// as kubeadm configures them. Reading order:
//
//	name.go      parses names under the cluster's domain
//	zone.go      THE answers about Services, endpoints and pods: pure, but for the state that it is given
//	follow.go    that state, from informers
//	handler.go   one query: the zone's, or forwarded
//	forward.go   the resolvers of the machine, and a cache of their answers
//	server.go    UDP and TCP, and the size of responses
//	device.go    the network device that has the cluster DNS address on this node
//	service.go   the Service kube-dns, which reserves that address
//
// Pods query the address of the Service kube-dns. Each node has that address itself, on a device of its own, as node-local
// DNS caches do: a query never leaves the node, and needs no rule of the service proxy, which the Service's label
// service.kubernetes.io/service-proxy-name excludes. To use another DNS, replace the Service by one without the label: then
// the proxy forwards the address to its endpoints.
package dns
