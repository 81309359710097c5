// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mortise-dev/mortise/internal/machine"
)

// findNode decides what runs pods, and says why where it was left to us. Nothing is started yet.
func findNode(ctx context.Context, p *parts, o *options) error {
	switch o.node {
	case NodeNone, NodeSimulated:
		p.nodeText = string(o.node)
		return nil
	}
	sockets := []string{o.criSocket}
	if o.criSocket == "" {
		sockets = []string{machine.HostSocket}
		if o.dataDir != "" {
			own, err := machine.Socket(o.dataDir)
			if err != nil {
				return err
			}
			sockets = append(sockets, own)
		}
	}
	why := ""
	if os.Geteuid() != 0 {
		why = "not root"
	} else if o.dataDir == "" {
		why = "no data directory"
	} else {
		for _, s := range sockets {
			err := machine.Answers(ctx, s)
			if err == nil {
				o.node, p.criSocket, p.nodeText = NodeCRI, s, "containerd"
				return nil
			}
			why = fmt.Sprintf("no container runtime answers at %s", s)
		}
	}
	if o.node == NodeCRI {
		return fmt.Errorf("node cri: %s; `mortise machine prepare` (as root) arranges for one", why)
	}
	o.node, p.nodeText = NodeSimulated, fmt.Sprintf("simulated (%s)", why)
	return nil
}

// nodeRoot is where the node keeps what it must remember of its pods.
func nodeRoot(o *options) string { return filepath.Join(o.dataDir, "kubelet") }
