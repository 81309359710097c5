// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import "github.com/spf13/pflag"

// Network are the settings of the Service network on a real node. The zero value enables all parts: the proxy in this process, by nftables
// if the machine supports it and else by iptables, the DNS, and kernel routes.
type Network struct {
	// NoProxy leaves Services to another proxy, NoDNS names to another DNS server.
	NoProxy, NoDNS bool
	// NoRoutes adds no routes to other nodes' pods, because another network plug-in does.
	NoRoutes bool
	// VXLAN sends packets to other nodes' pods through a tunnel, for nodes behind routers; set it on all nodes or on none.
	VXLAN bool
	// ProxyMode is nftables or iptables, as kube-proxy's flag; empty: the best that the machine supports.
	ProxyMode string
	// NodePortAddresses are the prefixes that node ports listen on, or "primary" for the node's own addresses, as kube-proxy's flag; none:
	// all addresses.
	NodePortAddresses []string
	// MasqueradeAll masquerades all traffic to cluster IPs of Services, as kube-proxy's flag does.
	MasqueradeAll bool
	// ProxyConfigFile is a KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1, as for kube-proxy's --config. The three settings
	// above override it if they are set.
	ProxyConfigFile string

	flags *pflag.FlagSet // the flags that set them; nil: none
}

// GivenMasqueradeAll returns MasqueradeAll if its flag or code sets it; else nil.
func (o *Network) GivenMasqueradeAll() *bool {
	if o.MasqueradeAll || o.flags != nil && o.flags.Changed(masqueradeAll) {
		return &o.MasqueradeAll
	}
	return nil
}

const masqueradeAll = "masquerade-all"

// AddFlags binds the settings to f, for a command without the others.
func (o *Network) AddFlags(f *pflag.FlagSet) { o.addFlags(f) }

func (o *Network) addFlags(f *pflag.FlagSet) {
	o.flags = f
	f.BoolVar(&o.NoProxy, "no-service-proxy", o.NoProxy,
		"Do not run the service proxy on a real node, because another proxy implements Services.")
	f.BoolVar(&o.NoDNS, "no-cluster-dns", o.NoDNS,
		"Do not run the cluster DNS on a real node, because another DNS server resolves Services and pods.")
	f.BoolVar(&o.NoRoutes, "no-node-routes", o.NoRoutes, "Do not add routes to the pods of other nodes, because another network plug-in does.")
	f.BoolVar(&o.VXLAN, "node-vxlan", o.VXLAN,
		"Tunnel pod traffic between nodes by VXLAN, for nodes that are on different networks. Set it on all nodes or on none.")
	f.StringVar(&o.ProxyConfigFile, "proxy-config", o.ProxyConfigFile,
		"File of a KubeProxyConfiguration for the service proxy. --proxy-mode, --nodeport-addresses and --masquerade-all win over it.")
	f.StringVar(&o.ProxyMode, "proxy-mode", o.ProxyMode,
		"Mode of the service proxy: nftables or iptables. Default: nftables if it works, else iptables.")
	f.StringSliceVar(&o.NodePortAddresses, "nodeport-addresses", o.NodePortAddresses,
		"List of CIDRs of the node's addresses on which node ports are open, or primary. Default: all addresses.")
	f.BoolVar(&o.MasqueradeAll, masqueradeAll, o.MasqueradeAll, "Masquerade (SNAT) all traffic sent to the cluster IPs of Services.")
}
