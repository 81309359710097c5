// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxyconfig

import (
	"net"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	proxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	netutils "k8s.io/utils/net"

	"github.com/mortise-dev/mortise/internal/agent/componentconfig"
)

// The ports of kube-proxy's own pages.
const (
	healthzPort = 10256
	metricsPort = 10249
)

// SetDefaults sets the defaults of unset fields as kube-proxy 1.37 does on Linux. The mode stays empty, because the machine decides which
// one works.
func SetDefaults(c *proxyv1alpha1.KubeProxyConfiguration) {
	c.APIVersion, c.Kind = proxyv1alpha1.SchemeGroupVersion.String(), "KubeProxyConfiguration"
	componentconfig.Value(&c.BindAddress, "0.0.0.0")
	everywhere, here := "0.0.0.0", "127.0.0.1"
	if netutils.ParseIPSloppy(c.BindAddress).To4() == nil {
		everywhere, here = "::", "::1"
	}
	c.HealthzBindAddress = withPort(c.HealthzBindAddress, everywhere, healthzPort)
	c.MetricsBindAddress = withPort(c.MetricsBindAddress, here, metricsPort)
	componentconfig.Pointer(&c.OOMScoreAdj, -999)
	componentconfig.Duration(&c.IPTables.SyncPeriod, 30*time.Second)
	componentconfig.Duration(&c.IPTables.MinSyncPeriod, time.Second)
	componentconfig.Pointer(&c.IPTables.LocalhostNodePorts, true)
	componentconfig.Pointer(&c.IPTables.MasqueradeBit, 14)
	componentconfig.Duration(&c.IPVS.SyncPeriod, 30*time.Second)
	componentconfig.Duration(&c.NFTables.SyncPeriod, 30*time.Second)
	componentconfig.Duration(&c.NFTables.MinSyncPeriod, time.Second)
	componentconfig.Pointer(&c.NFTables.MasqueradeBit, 14)
	componentconfig.Pointer(&c.Conntrack.MaxPerCore, 32<<10)
	componentconfig.Pointer(&c.Conntrack.Min, 128<<10)
	componentconfig.Pointer(&c.Conntrack.TCPEstablishedTimeout, metav1.Duration{Duration: 24 * time.Hour})
	componentconfig.Pointer(&c.Conntrack.TCPCloseWaitTimeout, metav1.Duration{Duration: time.Hour})
	componentconfig.Duration(&c.ConfigSyncPeriod, 15*time.Minute)
	componentconfig.Value(&c.ClientConnection.ContentType, "application/vnd.kubernetes.protobuf")
	componentconfig.Value(&c.ClientConnection.QPS, 5)
	componentconfig.Value(&c.ClientConnection.Burst, 10)
	if c.FeatureGates == nil {
		c.FeatureGates = map[string]bool{}
	}
	logsapi.SetRecommendedLoggingConfiguration(&c.Logging)
	if c.Mode == modeNFTables && len(c.NodePortAddresses) == 0 {
		c.NodePortAddresses = []string{primary}
	}
	componentconfig.Value(&c.DetectLocalMode, clusterCIDR)
}

// withPort adds the default port to the address of a page. An invalid address stays, for the validation to reject.
func withPort(address, usual string, port int) string {
	componentconfig.Value(&address, usual)
	if _, _, err := net.SplitHostPort(address); err == nil || netutils.ParseIPSloppy(address) == nil {
		return address
	}
	return net.JoinHostPort(address, strconv.Itoa(port))
}
