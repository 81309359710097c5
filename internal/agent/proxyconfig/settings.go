// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxyconfig

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	proxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	netutils "k8s.io/utils/net"

	"github.com/mortise-dev/mortise/internal/agent/conntrack"
)

// The modes.
const (
	modeNFTables = proxyv1alpha1.ProxyMode("nftables")
	modeIPTables = proxyv1alpha1.ProxyMode("iptables")
	modeIPVS     = proxyv1alpha1.ProxyMode("ipvs")
)

// The ways to detect local pods.
const (
	clusterCIDR         = proxyv1alpha1.LocalMode("ClusterCIDR")
	nodeCIDR            = proxyv1alpha1.LocalMode("NodeCIDR")
	bridgeInterface     = proxyv1alpha1.LocalMode("BridgeInterface")
	interfaceNamePrefix = proxyv1alpha1.LocalMode("InterfaceNamePrefix")
)

// The words that stand for prefixes in nodePortAddresses.
const (
	primary   = "primary"
	localhost = "localhost"
	all       = "all"
)

// MasqueradeAll reports whether all traffic to Services' addresses is masqueraded.
func (c *Config) MasqueradeAll() bool {
	if c.Mode == modeNFTables {
		return c.NFTables.MasqueradeAll
	}
	return c.IPTables.MasqueradeAll
}

// MasqueradeMark returns the packet mark of traffic to masquerade.
func (c *Config) MasqueradeMark() uint32 {
	if c.Mode == modeNFTables {
		return 1 << *c.NFTables.MasqueradeBit
	}
	return 1 << *c.IPTables.MasqueradeBit
}

// SyncPeriod returns the maximum delay after a failure.
func (c *Config) SyncPeriod() time.Duration { return sync(c.KubeProxyConfiguration).Duration }

// MinSyncPeriod returns the minimum time between two changes of rules, if the file sets it: otherwise the proxy paces itself.
func (c *Config) MinSyncPeriod() time.Duration { return minSync(c.written).Duration }

func sync(c *proxyv1alpha1.KubeProxyConfiguration) metav1.Duration {
	switch c.Mode {
	case modeNFTables:
		return c.NFTables.SyncPeriod
	case modeIPVS:
		return c.IPVS.SyncPeriod
	}
	return c.IPTables.SyncPeriod
}

func minSync(c *proxyv1alpha1.KubeProxyConfiguration) metav1.Duration {
	switch c.Mode {
	case modeNFTables:
		return c.NFTables.MinSyncPeriod
	case modeIPVS:
		return c.IPVS.MinSyncPeriod
	}
	return c.IPTables.MinSyncPeriod
}

// PodCIDRs returns the file's pod ranges; none: the file does not set them.
func (c *Config) PodCIDRs() []netip.Prefix {
	if c.DetectLocalMode != clusterCIDR {
		return nil
	}
	var out []netip.Prefix
	for _, text := range c.clusterCIDRs() {
		if p, ok := prefix(text); ok {
			out = append(out, p)
		}
	}
	return out
}

func (c *Config) clusterCIDRs() []string { return clusterCIDRs(c.KubeProxyConfiguration) }

func clusterCIDRs(c *proxyv1alpha1.KubeProxyConfiguration) []string {
	if c.ClusterCIDR == "" {
		return nil
	}
	return strings.Split(c.ClusterCIDR, ",")
}

// NodePods reports whether only this node's pods are treated as pods.
func (c *Config) NodePods() bool { return c.DetectLocalMode == nodeCIDR }

// PodInterface returns the name of the interface that pods' packets come from, or, if begins is true, the prefix of such names. Empty:
// addresses identify pods.
func (c *Config) PodInterface() (name string, begins bool) {
	switch c.DetectLocalMode {
	case bridgeInterface:
		return c.DetectLocal.BridgeInterface, false
	case interfaceNamePrefix:
		return c.DetectLocal.InterfaceNamePrefix, true
	}
	return "", false
}

// NodePortPrefixes returns the prefixes for node ports, and the word primary; none means all addresses.
func (c *Config) NodePortPrefixes() []string {
	var out []string
	for _, text := range c.NodePortAddresses {
		switch text {
		case primary:
			out = append(out, primary)
		case localhost:
			out = append(out, "127.0.0.0/8", "::1/128")
		case all:
			out = append(out, "0.0.0.0/0", "::/0")
		default:
			if p, ok := prefix(text); ok {
				out = append(out, p.String())
			}
		}
	}
	return out
}

// Address returns the node's own address; the zero value: use the Node object's.
func (c *Config) Address() netip.Addr {
	a, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(c.BindAddress))
	if !ok || a.Unmap().IsUnspecified() {
		return netip.Addr{}
	}
	return a.Unmap()
}

// HealthzAddress and MetricsAddress return the addresses of pages: an address and a port.
func (c *Config) HealthzAddress() string { return plain(c.HealthzBindAddress) }

// MetricsAddress is described at HealthzAddress.
func (c *Config) MetricsAddress() string { return plain(c.MetricsBindAddress) }

// plain removes leading zeros, which kube-proxy accepts.
func plain(text string) string {
	host, port, err := net.SplitHostPort(text)
	if a, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(host)); err == nil && ok {
		return net.JoinHostPort(a.Unmap().String(), port)
	}
	return text
}

// most returns kube-proxy's limit of the number of connections, for a number of CPUs.
const most = 1 << 20

// Tracking returns the file's settings of connection tracking for a machine with this number of CPUs.
func (c *Config) Tracking(processors int) conntrack.Settings {
	said, full := c.written.Conntrack, c.Conntrack
	t := conntrack.Settings{TCPBeLiberal: said.TCPBeLiberal, UDPUnreplied: said.UDPTimeout.Duration,
		UDPAssured: said.UDPStreamTimeout.Duration}
	if (said.MaxPerCore != nil || said.Min != nil) && *full.MaxPerCore > 0 {
		t.Max = max(int(*full.MaxPerCore)*processors, int(*full.Min))
		if int(*full.MaxPerCore)*processors > most {
			t.Max = most
		}
	}
	if said.TCPEstablishedTimeout != nil {
		t.TCPEstablished = said.TCPEstablishedTimeout.Duration
	}
	if said.TCPCloseWaitTimeout != nil {
		t.TCPCloseWait = said.TCPCloseWaitTimeout.Duration
	}
	return t
}

// prefix parses a range like kube-proxy, which accepts leading zeros.
func prefix(text string) (netip.Prefix, bool) {
	_, n, err := netutils.ParseCIDRSloppy(text)
	if err != nil {
		return netip.Prefix{}, false
	}
	a, _ := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	if a = a.Unmap(); a.Is4() && bits == 128 {
		ones -= 96
	}
	p, err := a.Prefix(ones)
	return p, err == nil
}

func ranges(list []string) (ok bool) {
	return !slices.ContainsFunc(list, func(text string) bool { _, ok := prefix(text); return !ok })
}
