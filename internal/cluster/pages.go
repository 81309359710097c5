// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net"
	"strconv"
	"strings"

	"github.com/mortise-dev/mortise/internal/node"
)

// flags are the settings as the flags of "mortise up" that make them, for /flagz.
func (c *settings) flags(n *node.Plan) map[string]string {
	return map[string]string{
		"data-dir": c.DataDir, "kubeconfig": c.KubeconfigFile, "store": c.Store, "listen": net.JoinHostPort(c.host, c.port),
		"node": string(n.Mode), "nodes": strconv.Itoa(n.Count), "cri-socket": n.CRISocket,
		"pod-cidr": c.podCIDRs[0].String(), "service-cidr": c.serviceCIDRs[0].String(), "controllers": strings.Join(c.Controllers, ","),
		"feature-gates": cborGate + "=" + strconv.FormatBool(c.cbor),
	}
}

// configuration is the same with its types, for /configz.
func (c *settings) configuration(n *node.Plan) map[string]any {
	return map[string]any{
		"dataDir": c.DataDir, "kubeconfig": c.KubeconfigFile, "store": c.Store, "listen": net.JoinHostPort(c.host, c.port),
		"node": n.Mode, "nodes": n.Count, "criSocket": n.CRISocket,
		"podCIDR": c.podCIDRs[0].String(), "serviceCIDR": c.serviceCIDRs[0].String(), "controllers": c.Controllers,
		"featureGates": map[string]bool{cborGate: c.cbor},
	}
}
