// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package node runs nodes with containers: [Containers] lets an embed.Server of this process run them, and an [Agent] is a node of a
// cluster whose API server is elsewhere. It needs Linux, and brings the container runtime's protocol, netlink and the packet filters
// with it; package embed does without.
//
// # Stability
//
// What this package exports only grows: a committed list of it is compared in a test, and a change that breaks a program is announced in a
// release before.
package node

import (
	"cmp"
	"context"
	"log/slog"

	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/node"
	"github.com/mortise-dev/mortise/internal/node/containers"
)

// Containers returns what runs pods in containers on this machine, for [embed.Server.Containers].
func Containers() embed.Containers { return containers.New() }

// Agent is a node of a cluster whose API server is elsewhere. Start it once, Stop it once.
type Agent struct {
	// DataDir is the directory of the node's identity and of the state of its pods. Required.
	DataDir string
	// Join is the URL of the API server, and Token a bootstrap token; both may be empty once the node has joined.
	Join, Token string
	// CACertHashes pin the cluster's CA: each is sha256: and the hash of its public key; CAFile is a file of it. Without
	// both, any server that knows the token is trusted.
	CACertHashes []string
	CAFile       string
	// Name is the node's name; empty: the host's name.
	Name string
	// Address is the address at which other hosts reach the node: one, or one of each IP family behind a comma. Empty: the address from
	// which the node reaches the API server, which may change while it runs. If pods have both families and Address one, the node adds
	// the other family's address on the same interface.
	Address string
	// Mode selects how pods run: auto, cri or simulated; empty: auto.
	Mode embed.NodeMode
	// CRISocket is the runtime's socket, as in [embed.Server].
	CRISocket string
	// PodCIDR is the range of all pods' addresses in the cluster, as in [embed.Server]; empty: 10.244.0.0/16.
	PodCIDR string
	// Kubelet and Network are the node's settings, as in [embed.Server.APIServer].
	Kubelet options.Node
	Network options.Network
	// Logger receives the node's logs; nil discards them.
	Logger *slog.Logger

	node *containers.Node // nil: not started
}

// Start joins the cluster, or continues as the node that it was, and returns when the node runs. An invalid token, CA or
// name is an error; an unreachable server is one only if the node has not joined yet.
func (n *Agent) Start(ctx context.Context) error {
	o := node.Options{
		DataDir: n.DataDir, Mode: node.Mode(cmp.Or(n.Mode, embed.NodeAuto)), Count: 1, CRISocket: n.CRISocket,
		Settings: n.Kubelet, Network: n.Network, Ledger: extension.NewLedger(clock.RealClock{}), Logger: n.Logger,
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	var err error
	if o.PodCIDRs, err = node.ParsePodCIDRs(cmp.Or(n.PodCIDR, node.DefaultPodCIDR)); err != nil {
		return err
	}
	joined, err := containers.Join(ctx, o, containers.JoinOptions{
		Server: n.Join, Token: n.Token, CACertHashes: n.CACertHashes, CAFile: n.CAFile, Name: n.Name, Address: n.Address,
	})
	if err != nil {
		return err
	}
	n.node = joined
	return nil
}

// Stop ends the node cleanly. Pods of a real node are left running. More calls return the same.
func (n *Agent) Stop() error {
	if n.node == nil {
		return nil
	}
	return n.node.Stop()
}

// Wait blocks until the node ends: nil after Stop, the reason if a part of it failed.
func (n *Agent) Wait() error { return n.node.Wait() }

// Settled returns a closed channel: a node has no caches to wait for.
func (n *Agent) Settled() <-chan struct{} {
	settled := make(chan struct{})
	close(settled)
	return settled
}

// Ready describes the running node.
func (n *Agent) Ready() embed.Ready {
	return embed.Ready{URL: n.node.Server(), Kubeconfig: containers.Kubeconfig(n.DataDir), Pods: n.node.Text()}
}
