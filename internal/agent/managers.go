// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import "github.com/mortise-dev/mortise/internal/agent/containermanager"

// resourceManagers makes THE table of the managers of resources beyond cgroup limits, in kubelet's order: devices, CPUs, memory, claims.
func (n *node) resourceManagers() (*containermanager.Manager, error) {
	if err := n.openClaims(); err != nil {
		return nil, err
	}
	return containermanager.New(n.exclusive.policy(), append(n.exclusive.rows(), n.claims.Row())...), nil
}
