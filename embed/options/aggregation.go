// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import "github.com/spf13/pflag"

// Aggregation configures the connections to aggregated API servers.
type Aggregation struct {
	// ProxyClientCertFile and ProxyClientKeyFile are the server's client certificate and key; set both or none. The server reads them again
	// when they change. Empty: a certificate of the cluster's own front-proxy CA.
	ProxyClientCertFile, ProxyClientKeyFile string
	// Routing sends requests to an endpoint of the service, not to its cluster IP; nil: true, as the server's host may not reach cluster
	// IPs. (kube-apiserver's default is false.)
	Routing *bool
	// RejectRedirects hides redirects of aggregated API servers from clients; nil: true.
	RejectRedirects *bool
	// ResourceMetrics serves metrics.k8s.io from the nodes' own figures while no APIService names a server of it; nil: true, with controllers.
	ResourceMetrics *bool
	// ExternalMetricsRoutes serves ExternalMetricsRoute: several servers serve external metrics, each some of them.
	ExternalMetricsRoutes bool
	// Peers says how the servers that share a store reach each other.
	Peers Peers
}

// Peers says how the servers that share a store reach each other, to forward requests for what one of them does not serve.
type Peers struct {
	// CAFile is the file of the authorities of the other servers' serving certificates; empty: the cluster's own.
	CAFile string
	// AdvertiseIP and AdvertisePort are where the others reach this server; set both or none. Empty: at its advertised address.
	AdvertiseIP, AdvertisePort string
}

func (o *Aggregation) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.ProxyClientCertFile, "proxy-client-cert-file", o.ProxyClientCertFile,
		"File of the client certificate that the server presents to aggregated API servers. Default: one that the cluster's front-proxy CA signs.")
	f.StringVar(&o.ProxyClientKeyFile, "proxy-client-key-file", o.ProxyClientKeyFile, "File of the private key of --proxy-client-cert-file.")
	addSwitch(f, &o.Routing, "enable-aggregator-routing", true,
		"Connect to the endpoints of an aggregated API server's Service instead of its cluster IP.")
	addSwitch(f, &o.RejectRedirects, "aggregator-reject-forwarding-redirect", true,
		"Reject redirects of aggregated API servers instead of forwarding them to the client.")
	addSwitch(f, &o.ResourceMetrics, "resource-metrics-api", true,
		"Serve metrics.k8s.io, what nodes and pods use, while no APIService names a server of it, such as metrics-server.")
	f.BoolVar(&o.ExternalMetricsRoutes, "enable-external-metrics-routes", o.ExternalMetricsRoutes,
		"Serve ExternalMetricsRoute of extension.mortise.dev, by which several servers serve external metrics, each some of them.")
	f.StringVar(&o.Peers.CAFile, "peer-ca-file", o.Peers.CAFile,
		"File of the authorities of the serving certificates of other servers of the cluster. Default: the cluster's CA.")
	f.StringVar(&o.Peers.AdvertiseIP, "peer-advertise-ip", o.Peers.AdvertiseIP,
		"Address at which other servers of the cluster reach this one, to forward requests. Default: the advertised address.")
	f.StringVar(&o.Peers.AdvertisePort, "peer-advertise-port", o.Peers.AdvertisePort, "Port of --peer-advertise-ip.")
}
