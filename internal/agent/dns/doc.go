// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package dns implements the cluster DNS of each node: it responds as CoreDNS does with the kubernetes, forward and cache plug-ins as
// kubeadm configures them. Reading order:
//
//	name.go      parses names under the cluster's domain
//	zone.go      THE responses about Services, endpoints and pods: pure, except that it reads the given state
//	follow.go    that state, from informers
//	handler.go   one query: the zone answers it, or it is forwarded
//	forward.go   the resolvers of the machine, and a cache of their responses
//	server.go    UDP and TCP, and the size of responses
//	device.go    the network device with the cluster DNS address of this node
//	service.go   the Service kube-dns, which reserves that address
//
// Pods query the address of the Service kube-dns. Each node has that address itself, on its own device, as node-local DNS caches do: a
// query never leaves the node, and needs no rule of the service proxy, because the Service's label
// service.kubernetes.io/service-proxy-name excludes the Service from it. To use another DNS, replace the Service by one without the label:
// then the proxy forwards the address to its endpoints.
package dns
