// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxyconfig

import (
	"fmt"
	"net/netip"
	"slices"

	proxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/mortise-dev/mortise/internal/agent/componentconfig"
)

// sections are the fields that are listed by their own fields.
func sections() []string {
	return []string{"iptables", "nftables", "ipvs", "winkernel", "conntrack", "detectLocal"}
}

// Fields lists all fields by name. docs/kube-proxy-configuration.md shows the same table.
func Fields() []componentconfig.Field {
	honoured := func(why string, names ...string) []componentconfig.Field {
		return componentconfig.Each(componentconfig.Honoured, why, names...)
	}
	without := func(why string, names ...string) []componentconfig.Field {
		return componentconfig.Each(componentconfig.Without, why, names...)
	}
	return componentconfig.Sorted(
		honoured("backend of the rules; empty selects nftables if it works, else iptables. ipvs is rejected", "mode"),
		honoured("if the mode is nftables", "nftables.masqueradeAll", "nftables.masqueradeBit", "nftables.syncPeriod", "nftables.minSyncPeriod"),
		honoured("if the mode is not nftables", "iptables.masqueradeAll", "iptables.masqueradeBit", "iptables.syncPeriod",
			"iptables.minSyncPeriod"),
		honoured("only false: node ports are never on loopback addresses", "iptables.localhostNodePorts"),
		honoured("as in kube-proxy, but never on loopback addresses", "nodePortAddresses"),
		honoured("which addresses are pods; without a range, those of --pod-cidr", "detectLocalMode", "clusterCIDR",
			"detectLocal.bridgeInterface", "detectLocal.interfaceNamePrefix"),
		honoured("the node's own address", "bindAddress"),
		honoured("pages", "healthzBindAddress", "metricsBindAddress", "bindAddressHardFail", "enableProfiling"),
		honoured("the node writes the kernel's settings if the file has any of these", "conntrack.maxPerCore", "conntrack.min",
			"conntrack.tcpEstablishedTimeout",
			"conntrack.tcpCloseWaitTimeout", "conntrack.tcpBeLiberal", "conntrack.udpTimeout", "conntrack.udpStreamTimeout"),
		honoured("the proxy validates names; gates have no other effect", "featureGates"),

		without("the proxy uses the node's client of the API server", "clientConnection"),
		without("the proxy uses the name of its node", "hostnameOverride"),
		without("the proxy watches objects and needs no resync", "configSyncPeriod"),
		without("`--log-level` sets the log level", "logging"),
		without("the proxy is a part of the node's process", "oomScoreAdj"),
		without("Mortise hides no metric", "showHiddenMetricsForVersion"),
		without("kube-proxy does not use it either", "portRange"),
		without("Mortise has no mode ipvs", "ipvs.syncPeriod", "ipvs.minSyncPeriod", "ipvs.scheduler", "ipvs.excludeCIDRs", "ipvs.strictARP",
			"ipvs.tcpTimeout", "ipvs.tcpFinTimeout", "ipvs.udpTimeout"),
		without("nodes run Linux", "winkernel.networkName", "winkernel.sourceVip", "winkernel.enableDSR", "winkernel.rootHnsEndpointName",
			"winkernel.forwardHealthCheckVip", "windowsRunAsService"),
	)
}

// Warnings returns a warning for each field that is set and has no effect, and for other surprises.
func (c *Config) Warnings() []string {
	var out []string
	if c.Lenient != nil {
		out = append(out, fmt.Sprintf("Using lenient decoding as strict decoding failed: %v", c.Lenient)) // upstream's words
	}
	usual := &proxyv1alpha1.KubeProxyConfiguration{}
	SetDefaults(usual)
	out = append(out, componentconfig.Unheeded(Fields(), componentconfig.Set(c.KubeProxyConfiguration, usual, sections()...))...)
	loopback := slices.ContainsFunc(c.NodePortAddresses, func(text string) bool {
		p, ok := prefix(text)
		return text == localhost || ok && p.Bits() > 0 && (p.Addr().IsLoopback() || p.Contains(netip.IPv6Loopback()))
	})
	if said := c.written.IPTables.LocalhostNodePorts; loopback || said != nil && *said && c.Mode != modeNFTables {
		out = append(out, "node ports are never on loopback addresses")
	}
	return out
}
