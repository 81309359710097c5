// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import "github.com/spf13/pflag"

// Aggregation says how API servers are reached that answer for a group-version in our stead.
type Aggregation struct {
	// ProxyClientCertFile and ProxyClientKeyFile are what we show them; both or none. They are read again when they change.
	// Empty: a certificate of the cluster's own front-proxy authority.
	ProxyClientCertFile, ProxyClientKeyFile string
	// Routing calls an endpoint of their service, not its cluster IP; nil: it does, as cluster IPs need not answer from where
	// the server is. (kube-apiserver does not without the flag.)
	Routing *bool
	// RejectRedirects keeps their redirects from clients; nil: it does.
	RejectRedirects *bool
}

func (o *Aggregation) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.ProxyClientCertFile, "proxy-client-cert-file", o.ProxyClientCertFile, "certificate that is shown to aggregated API servers; default: one of the cluster's own front-proxy authority")
	f.StringVar(&o.ProxyClientKeyFile, "proxy-client-key-file", o.ProxyClientKeyFile, "private key of --proxy-client-cert-file")
	addSwitch(f, &o.Routing, "enable-aggregator-routing", true, "call an endpoint of an aggregated API server's service, not its cluster IP")
	addSwitch(f, &o.RejectRedirects, "aggregator-reject-forwarding-redirect", true, "keep redirects of aggregated API servers from clients")
}
