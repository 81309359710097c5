// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"path/filepath"

	"github.com/mortise-dev/mortise/internal/agent/componentconfig"
	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/csi"
	"github.com/mortise-dev/mortise/internal/agent/devicemanager"
	"github.com/mortise-dev/mortise/internal/agent/dra"
	"github.com/mortise-dev/mortise/internal/agent/hardware"
	"github.com/mortise-dev/mortise/internal/agent/plugins"
	"github.com/mortise-dev/mortise/internal/agent/podresources"
)

// resourceManagers makes THE table of the managers of resources beyond cgroup limits, in kubelet's order: devices, CPUs, memory, claims.
func (n *node) resourceManagers() (*containermanager.Manager, error) {
	devices, err := devicemanager.New(devicemanager.Options{
		Dir: filepath.Join(n.Host.RootDir, "device-plugins"), Pods: n.workers, Changed: func() { n.nodeStatus.Resync() },
		NUMANodes: hardware.NUMANodes(), Wait: n.Host.PluginWait, Ledger: n.Ledger, Metrics: n.Metrics.devices,
		Clock: n.Clock, Logger: n.Logger,
	})
	if err != nil {
		return nil, err
	}
	n.devices = devices
	if err := n.openClaims(); err != nil {
		return nil, err
	}
	rows := append([]containermanager.Row{devices.Row()}, n.exclusive.rows()...)
	return containermanager.New(n.exclusive.policy(), append(rows, n.claims.Row())...), nil
}

// servePodResources serves the pod resources API and the pods API.
func (n *node) servePodResources(ctx context.Context) error {
	return podresources.Run(ctx, podresources.Options{
		Dir: n.Host.RootDir, Pods: n.workers, Resources: n.managers, Metrics: n.Metrics.resources, Logger: n.Logger,
		NoPodsAPI: !componentconfig.GateOn(n.Kubelet.FeatureGates, "PodsAPI"),
	})
}

// watchPlugins registers plug-ins. A node that cannot watch for them still runs its pods.
func (n *node) watchPlugins(ctx context.Context) error {
	err := plugins.Run(ctx, plugins.Options{
		Dir: filepath.Join(n.Host.RootDir, "plugins_registry"), Ledger: n.Ledger, Logger: n.Logger,
		// THE table of the types of plug-ins in the plug-in directory.
		Handlers: map[string]plugins.Handler{
			devicemanager.Type: n.devices.Plugins(), dra.PluginType: n.claims.Handler(), csi.PluginType: n.storage.Handler(),
		},
	})
	if err != nil {
		n.Logger.Error("Could not watch for plug-ins", "err", err)
	}
	return nil
}
