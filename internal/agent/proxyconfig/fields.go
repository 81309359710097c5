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

// sections are the fields whose own fields are listed.
func sections() []string {
	return []string{"iptables", "nftables", "ipvs", "winkernel", "conntrack", "detectLocal"}
}

// Fields are all fields, by name. docs/kube-proxy-configuration.md shows the same table.
func Fields() []componentconfig.Field {
	honoured := func(why string, names ...string) []componentconfig.Field {
		return componentconfig.Each(componentconfig.Honoured, why, names...)
	}
	without := func(why string, names ...string) []componentconfig.Field {
		return componentconfig.Each(componentconfig.Without, why, names...)
	}
	return componentconfig.Sorted(
		honoured("what rules are written by; empty is nftables where it works, else iptables. ipvs is refused", "mode"),
		honoured("where the mode is nftables", "nftables.masqueradeAll", "nftables.masqueradeBit", "nftables.syncPeriod", "nftables.minSyncPeriod"),
		honoured("where the mode is not nftables", "iptables.masqueradeAll", "iptables.masqueradeBit", "iptables.syncPeriod", "iptables.minSyncPeriod"),
		honoured("false, that is: node ports are never on loopback addresses", "iptables.localhostNodePorts"),
		honoured("as kube-proxy has it, but never on loopback addresses", "nodePortAddresses"),
		honoured("who is a pod; without a range those of --pod-cidr are", "detectLocalMode", "clusterCIDR", "detectLocal.bridgeInterface", "detectLocal.interfaceNamePrefix"),
		honoured("the node's own address", "bindAddress"),
		honoured("pages", "healthzBindAddress", "metricsBindAddress", "bindAddressHardFail", "enableProfiling"),
		honoured("the kernel's settings are written where the file has any of these", "conntrack.maxPerCore", "conntrack.min", "conntrack.tcpEstablishedTimeout",
			"conntrack.tcpCloseWaitTimeout", "conntrack.tcpBeLiberal", "conntrack.udpTimeout", "conntrack.udpStreamTimeout"),
		honoured("names are checked; a gate changes nothing else", "featureGates"),

		without("the proxy is a part of the node, and has the node's way to the API server", "clientConnection"),
		without("the proxy is its node's, whose name it has", "hostnameOverride"),
		without("objects are watched, and need not be looked at again", "configSyncPeriod"),
		without("Mortise logs as it is told to on the command line", "logging"),
		without("the proxy is a part of the node's process", "oomScoreAdj"),
		without("no metric is hidden", "showHiddenMetricsForVersion"),
		without("kube-proxy does not use it either", "portRange"),
		without("there is no mode ipvs", "ipvs.syncPeriod", "ipvs.minSyncPeriod", "ipvs.scheduler", "ipvs.excludeCIDRs", "ipvs.strictARP",
			"ipvs.tcpTimeout", "ipvs.tcpFinTimeout", "ipvs.udpTimeout"),
		without("nodes run Linux", "winkernel.networkName", "winkernel.sourceVip", "winkernel.enableDSR", "winkernel.rootHnsEndpointName",
			"winkernel.forwardHealthCheckVip", "windowsRunAsService"),
	)
}

// Warnings say of each field that is set and without effect that it is, and what else the owner of the file may not expect.
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
