// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/podstats"
	"github.com/mortise-dev/mortise/internal/agent/podstreams"
)

// api is the view of the node that its HTTP API has.
type api struct {
	*podstreams.Server
	*podstats.Provider
	node *node
}

var _ Node = (*api)(nil)

// Name implements Node.
func (a *api) Name() string { return a.node.NodeName }

// Pods implements Node.
func (a *api) Pods() []*corev1.Pod { return a.node.workers.Pods() }
