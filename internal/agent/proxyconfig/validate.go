// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxyconfig

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	proxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	netutils "k8s.io/utils/net"

	"github.com/mortise-dev/mortise/internal/agent/componentconfig"
)

// mistakes collects validation errors.
type mistakes field.ErrorList

func (m *mistakes) add(wrong bool, at *field.Path, value any, why string) {
	if wrong {
		*m = append(*m, field.Invalid(at, value, why))
	}
}

// hiddenBefore is the version whose hidden metrics may be shown: the one before ours.
const hiddenBefore = "1.36"

// kube-proxy's messages about numbers; all are upstream's words.
const (
	notNegative = "must be greater than or equal to 0"
	positive    = "must be greater than 0"
	oneBit      = "must be within the range [0, 31]"
	noCIDR      = "must be a valid CIDR"
	onePair     = "must be a either a single CIDR or dual-stack pair of CIDRs (e.g. [10.100.0.0/16, fde4:8dba:82e1::/48]"
	oneCIDR     = "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)"
)

// Validate validates a configuration with defaults: it rejects what kube-proxy 1.37 rejects, with its paths and messages, and the mode
// ipvs, which this node does not have. The paths are not those of the file, but of kube-proxy's internal type.
func Validate(c *proxyv1alpha1.KubeProxyConfiguration) error {
	var m mistakes
	at := field.NewPath("KubeProxyConfiguration")
	if errs := componentconfig.CheckGates(c.FeatureGates); len(errs) > 0 {
		m.add(true, at.Child("featureGates"), c.FeatureGates, errors.Join(errs...).Error())
	}
	checkBackends(c, at, &m)
	linux := at.Child("KubeProxyLinuxConfiguration")
	checkConntrack(&c.Conntrack, linux.Child("KubeProxyConntrackConfiguration"), &m)
	m.add(*c.OOMScoreAdj < -1000 || *c.OOMScoreAdj > 1000, linux.Child("OOMScoreAdj"), *c.OOMScoreAdj,
		"must be within the range [-1000, 1000]")
	m.add(!slices.Contains([]proxyv1alpha1.ProxyMode{"", modeIPTables, modeNFTables, modeIPVS}, c.Mode), at.Child("Mode", "ProxyMode"),
		string(c.Mode),
		"must be iptables, ipvs, nftables or blank (blank means the best-available proxy [currently iptables])")
	m.add(c.ClientConnection.Burst < 0, at.Child("ClientConnection", "Burst"), int64(c.ClientConnection.Burst), notNegative)
	checkPeriods(c, at, &m)
	m.add(netutils.ParseIPSloppy(c.BindAddress) == nil, at.Child("BindAddress"), c.BindAddress,
		"not a valid textual representation of an IP address")
	checkPage(c.HealthzBindAddress, at.Child("HealthzBindAddress"), &m)
	checkPage(c.MetricsBindAddress, at.Child("MetricsBindAddress"), &m)
	checkNodePorts(c.NodePortAddresses, at.Child("NodePortAddresses"), &m)
	if v := c.ShowHiddenMetricsForVersion; v != "" && v != hiddenBefore {
		err := field.Invalid(field.NewPath("showHiddenMetricsForVersion"), v,
			"must be omitted or have the value '"+hiddenBefore+"'; only the previous minor version is allowed")
		m.add(true, at.Child("ShowHiddenMetricsForVersion"), v, "invalid showHiddenMetricsForVersion: "+err.Error())
	}
	checkLocal(c, at, &m)
	checkLogging(c, at.Child("logging"), &m)

	errs := make([]error, 0, len(m))
	for _, e := range m {
		errs = append(errs, e)
	}
	for _, d := range []struct{ field, name string }{
		{"bridgeInterface", c.DetectLocal.BridgeInterface}, {"interfaceNamePrefix", c.DetectLocal.InterfaceNamePrefix},
	} {
		if strings.ContainsFunc(d.name, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`/"\*+`, r) }) ||
			len(d.name) > 15 {
			errs = append(errs, fmt.Errorf("detectLocal.%s %q is no name of an interface", d.field, d.name))
		}
	}
	if c.Mode == modeIPVS {
		errs = append(errs, errors.New("mode ipvs is not supported: Kubernetes deprecated it and removes it in 1.43; use nftables, or leave the mode empty"))
	}
	return utilerrors.NewAggregate(errs)
}

func checkBackends(c *proxyv1alpha1.KubeProxyConfiguration, at *field.Path, m *mistakes) {
	bit := func(n *int32, section string) {
		m.add(n != nil && (*n < 0 || *n > 31), at.Child(section, "MasqueradeBit"), n, oneBit)
	}
	bit(c.IPTables.MasqueradeBit, "KubeProxyIPTablesConfiguration")
	switch c.Mode {
	case modeNFTables:
		bit(c.NFTables.MasqueradeBit, "KubeProxyNFTablesConfiguration")
	case modeIPVS:
		ipvs := at.Child("KubeProxyIPVSConfiguration")
		m.add(c.IPVS.TCPTimeout.Duration < 0, ipvs.Child("TCPTimeout"), c.IPVS.TCPTimeout, notNegative)
		m.add(c.IPVS.TCPFinTimeout.Duration < 0, ipvs.Child("TCPFinTimeout"), c.IPVS.TCPFinTimeout, notNegative)
		m.add(c.IPVS.UDPTimeout.Duration < 0, ipvs.Child("UDPTimeout"), c.IPVS.UDPTimeout, notNegative)
		for i, text := range c.IPVS.ExcludeCIDRs {
			_, ok := prefix(text)
			m.add(!ok, ipvs.Child("ExcludeCidrs").Index(i), text, noCIDR)
		}
	}
}

func checkConntrack(c *proxyv1alpha1.KubeProxyConntrackConfiguration, at *field.Path, m *mistakes) {
	m.add(*c.MaxPerCore < 0, at.Child("MaxPerCore"), c.MaxPerCore, notNegative)
	m.add(*c.Min < 0, at.Child("Min"), c.Min, notNegative)
	for _, d := range []struct {
		name string
		time metav1.Duration
	}{
		{"TCPEstablishedTimeout", *c.TCPEstablishedTimeout}, {"TCPCloseWaitTimeout", *c.TCPCloseWaitTimeout},
		{"UDPTimeout", c.UDPTimeout}, {"UDPStreamTimeout", c.UDPStreamTimeout},
	} {
		m.add(d.time.Duration < 0, at.Child(d.name), d.time, notNegative)
	}
}

func checkPeriods(c *proxyv1alpha1.KubeProxyConfiguration, at *field.Path, m *mistakes) {
	period, least := sync(c), minSync(c)
	m.add(c.ConfigSyncPeriod.Duration <= 0, at.Child("ConfigSyncPeriod"), c.ConfigSyncPeriod, positive)
	m.add(period.Duration <= 0, at.Child("SyncPeriod"), period, positive)
	m.add(least.Duration < 0, at.Child("MinSyncPeriod"), least, notNegative)
	m.add(least.Duration > period.Duration, at.Child("SyncPeriod"), least,
		fmt.Sprintf("must be greater than or equal to %s", at.Child("MinSyncPeriod")))
}

// checkPage requires an address and a port.
func checkPage(text string, at *field.Path, m *mistakes) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		m.add(true, at, text, "must be IP:port")
		return
	}
	m.add(netutils.ParseIPSloppy(host) == nil, at, host, "must be a valid IP")
	n, err := strconv.Atoi(port)
	m.add(err != nil || n < 1 || n > 65535, at, port, "must be a valid port")
}

func checkNodePorts(list []string, at *field.Path, m *mistakes) {
	for i, text := range list {
		switch text {
		case primary, localhost, all:
			if slices.Contains(list[:i], text) {
				*m = append(*m, field.Duplicate(at.Index(i), text))
			}
		default:
			_, ok := prefix(text)
			m.add(!ok, at.Index(i), text, "must be a valid CIDR or one of the keywords 'primary', 'localhost', 'all'")
		}
	}
}

func checkLocal(c *proxyv1alpha1.KubeProxyConfiguration, at *field.Path, m *mistakes) {
	local := at.Child("DetectLocalConfiguration")
	switch c.DetectLocalMode {
	case bridgeInterface:
		m.add(c.DetectLocal.BridgeInterface == "", local.Child("InterfaceName"), c.DetectLocal.BridgeInterface, "must not be empty")
	case interfaceNamePrefix:
		m.add(c.DetectLocal.InterfaceNamePrefix == "", local.Child("InterfacePrefix"), c.DetectLocal.InterfaceNamePrefix, "must not be empty")
	case clusterCIDR:
		list, at := clusterCIDRs(c), local.Child("ClusterCIDRs")
		if len(list) > 2 {
			m.add(true, at, list, onePair)
			return
		}
		for i, text := range list {
			_, ok := prefix(text)
			m.add(!ok, at.Index(i), text, oneCIDR)
		}
		if len(list) == 2 && ranges(list) {
			first, _ := prefix(list[0])
			second, _ := prefix(list[1])
			m.add(first.Addr().Is4() == second.Addr().Is4(), at, list, onePair)
		}
	case nodeCIDR:
	default:
		*m = append(*m, field.NotSupported(at.Child("DetectLocalMode"), string(c.DetectLocalMode),
			[]string{string(clusterCIDR), string(nodeCIDR), string(bridgeInterface), string(interfaceNamePrefix), ""}))
	}
}

// checkLogging accepts JSON, which kube-proxy supports, whatever this process registers.
func checkLogging(c *proxyv1alpha1.KubeProxyConfiguration, at *field.Path, m *mistakes) {
	l := c.Logging
	if l.Format == logsapi.JSONLogFormat {
		l.Format = logsapi.DefaultLogFormat
		if len(l.VModule) > 0 {
			*m = append(*m, field.Forbidden(at.Child("vmodule"), "Only supported for text log format"))
		}
	}
	*m = append(*m, logsapi.Validate(&l, gates{set: c.FeatureGates}, at)...)
}

// gates are the configuration's feature gates, as logging queries them.
type gates struct {
	featuregate.FeatureGate
	set map[string]bool
}

// Enabled implements [featuregate.FeatureGate].
func (g gates) Enabled(f featuregate.Feature) bool { return componentconfig.GateOn(g.set, string(f)) }
