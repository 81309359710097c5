// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"

	"github.com/mortise-dev/mortise/internal/agent/componentconfig"
	"github.com/mortise-dev/mortise/internal/agent/imagecredentials"
	"github.com/mortise-dev/mortise/internal/agent/images"
)

// openProviders reads the configuration of the image credential providers. Nil: there is none.
func (n *node) openProviders() (images.Providers, error) {
	if n.ImageCredentials.Config == "" {
		return nil, nil
	}
	var err error
	n.providers, err = imagecredentials.Open(imagecredentials.Options{
		Config: n.ImageCredentials.Config, BinDir: n.ImageCredentials.BinDir,
		Tokens:   componentconfig.GateOn(n.Kubelet.FeatureGates, "KubeletServiceAccountTokenForCredentialProviders"),
		Accounts: n.objects, Ledger: n.Ledger, Node: n.reference(), Events: n.recorder, Metrics: n.Metrics.providers, Clock: n.Clock,
		Logger: n.Logger,
	})
	return n.providers, err
}

// watchProviders reloads their configuration. A node that cannot watch it keeps the providers that it has.
func (n *node) watchProviders(ctx context.Context) error {
	if n.providers == nil {
		return nil
	}
	if err := n.providers.Watch(ctx); err != nil {
		n.Logger.Error("Could not watch the configuration of image credential providers", "err", err)
	}
	return nil
}
