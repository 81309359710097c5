// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"net"
	"strconv"
	"strings"
)

// flags are the settings as the flags of "mortise up" that make them, for /flagz.
func (o *settled) flags() map[string]string {
	return map[string]string{
		"data-dir": o.dataDir, "kubeconfig": o.kubeconfig, "store": o.store, "listen": net.JoinHostPort(o.host, o.port),
		"node": string(o.node), "nodes": strconv.Itoa(o.nodes), "cri-socket": o.criSocket,
		"pod-cidr": o.podCIDR.String(), "service-cidr": o.serviceCIDRs[0].String(), "controllers": strings.Join(o.controllers, ","),
		"feature-gates": cborGate + "=" + strconv.FormatBool(o.cbor),
	}
}

// configuration is the same with its types, for /configz.
func (o *settled) configuration() map[string]any {
	return map[string]any{
		"dataDir": o.dataDir, "kubeconfig": o.kubeconfig, "store": o.store, "listen": net.JoinHostPort(o.host, o.port),
		"node": o.node, "nodes": o.nodes, "criSocket": o.criSocket,
		"podCIDR": o.podCIDR.String(), "serviceCIDR": o.serviceCIDRs[0].String(), "controllers": o.controllers,
		"featureGates": map[string]bool{cborGate: o.cbor},
	}
}
