// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/mortise-dev/mortise/internal/agent/componentconfig"
	"github.com/mortise-dev/mortise/internal/agent/dra"
)

// openClaims reads the claims that a former process has prepared.
func (n *node) openClaims() (err error) {
	on := func(gate string) bool { return componentconfig.GateOn(n.Kubelet.FeatureGates, gate) }
	n.claims, err = dra.New(dra.Options{
		Dir: n.Host.RootDir, BootID: n.settings.bootID, API: dra.Client{Client: n.client, NodeName: n.NodeName}, Pods: n.workers,
		SkipOperations: on("DRAOptionalNodeOperations"), PodGroups: on("DRAWorkloadResourceClaims"),
		NoHealth: !on("ResourceHealthStatus"), NoMessages: !on("ResourceHealthStatusMessage"),
		Ledger: n.Ledger, Metrics: n.Metrics.claims, Clock: n.Clock, Logger: n.Logger,
	})
	return err
}
