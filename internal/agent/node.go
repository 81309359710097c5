// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import "github.com/mortise-dev/mortise/internal/agent/nodeapi"

// The node's side of its HTTP API, as package nodeapi describes it.
type (
	// Node is the view of a node that its HTTP API needs.
	Node = nodeapi.Node
	// Checkpointer is a [Node] that writes checkpoints of containers.
	Checkpointer = nodeapi.Checkpointer
	// ServeFunc serves the node's HTTP API.
	ServeFunc = nodeapi.ServeFunc
)
