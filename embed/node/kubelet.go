// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"log/slog"

	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/node"
	"github.com/mortise-dev/mortise/internal/node/containers"
)

// Kubelet is a node in kubelet's place, of a cluster whose network other programs run. Start it once, Stop it once.
type Kubelet struct {
	// Kubeconfig is the file with the API server and the node's credentials. Required.
	Kubeconfig string
	// Name is the node's name; empty: the host's name.
	Name string
	// Address is the node's, as in [Agent].
	Address string
	// Kubelet are the node's settings. RootDir is required.
	Kubelet options.Node
	// Override sets the fields of the KubeletConfiguration that win over the files; nil: none.
	Override func(*configv1beta1.KubeletConfiguration)
	// Logger receives the node's logs; nil discards them.
	Logger *slog.Logger

	node *containers.Node // nil: not started
}

// Start starts the node, and returns when it runs. An unreachable server is no error.
func (k *Kubelet) Start(ctx context.Context) (err error) {
	o := node.Options{
		Settings: k.Kubelet, KubeletFlags: k.Override, Ledger: extension.NewLedger(clock.RealClock{}), Logger: k.Logger,
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.KubeletFlags == nil {
		o.KubeletFlags = func(*configv1beta1.KubeletConfiguration) {}
	}
	k.node, err = containers.TakeKubeletsPlace(ctx, o, containers.KubeletOptions{
		Kubeconfig: k.Kubeconfig, Name: k.Name, Address: k.Address,
	})
	return err
}

// Stop ends the node cleanly. Its pods are left running. More calls return the same.
func (k *Kubelet) Stop() error {
	if k.node == nil {
		return nil
	}
	return k.node.Stop()
}

// Wait blocks until the node ends: nil after Stop, the reason if a part of it failed.
func (k *Kubelet) Wait() error { return k.node.Wait() }
