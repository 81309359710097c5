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
	// ExternalMetricsRoutes serves ExternalMetricsRoute: several servers serve external metrics, each some of them.
	ExternalMetricsRoutes bool
}

func (o *Aggregation) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.ProxyClientCertFile, "proxy-client-cert-file", o.ProxyClientCertFile,
		"File of the client certificate that the server presents to aggregated API servers. Default: one that the cluster's front-proxy CA signs.")
	f.StringVar(&o.ProxyClientKeyFile, "proxy-client-key-file", o.ProxyClientKeyFile, "File of the private key of --proxy-client-cert-file.")
	addSwitch(f, &o.Routing, "enable-aggregator-routing", true,
		"Connect to the endpoints of an aggregated API server's Service instead of its cluster IP.")
	addSwitch(f, &o.RejectRedirects, "aggregator-reject-forwarding-redirect", true,
		"Reject redirects of aggregated API servers instead of forwarding them to the client.")
	f.BoolVar(&o.ExternalMetricsRoutes, "enable-external-metrics-routes", o.ExternalMetricsRoutes,
		"Serve ExternalMetricsRoute of extension.mortise.dev, by which several servers serve external metrics, each some of them.")
}
