// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/mortise-dev/mortise/embed"
	embednode "github.com/mortise-dev/mortise/embed/node"
	"github.com/mortise-dev/mortise/internal/cli"
)

// addContainers adds what needs nodes with containers to the program, and returns what runs them.
func addContainers(p *cli.Program) embed.Containers {
	p.Examine, p.PluginBench = examine, driveNodePlugin
	p.Join = func(ctx context.Context, o cli.NodeOptions) (cli.Cluster, error) {
		n := &embednode.Agent{
			DataDir: o.DataDir, Join: o.Join, Token: o.Token, CACertHashes: o.CACertHashes, CAFile: o.CAFile, Name: o.Name, Address: o.Address,
			Mode: embed.NodeMode(o.Node), CRISocket: o.CRISocket, PodCIDR: o.PodCIDR, Kubelet: o.Kubelet, Network: o.Network, Logger: o.Logger,
		}
		if err := n.Start(ctx); err != nil {
			return nil, err
		}
		return started{n}, nil
	}
	return embednode.Containers()
}
