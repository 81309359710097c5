// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/backoff"
	"github.com/mortise-dev/mortise/internal/agent/cni"
)

// podNetwork is the CNI configuration that the node writes for its runtime.
type podNetwork struct {
	options cni.Options // Dir is "-" if the node configures nothing
	fixed   string      // the configured range; empty: the podCIDRs of the Node
	clock   clock.PassiveClock
	logger  *slog.Logger

	reminders backoff.Failures // to a runtime that reports no network

	mu    sync.Mutex
	given []string // the podCIDRs of the Node, once they are configured
}

// install configures the pod network if no other configuration exists. With again it writes an existing configuration once more.
func (n *podNetwork) install(again bool, cidrs ...string) error {
	if n.options.Dir == "-" {
		return nil
	}
	options := n.options
	options.PodCIDRs, options.Again = cidrs, again
	path, ours, err := cni.Install(options)
	if err != nil {
		return fmt.Errorf("install CNI configuration: %w", err)
	}
	if !again {
		n.logger.Info("Pod network is configured", "file", path, "ours", ours)
	}
	return nil
}

// ranges returns the configured ranges of the pod network; none: it is not configured yet.
func (n *podNetwork) ranges() []string {
	if n.fixed != "" {
		return []string{n.fixed}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.given
}

// wantsRange reports whether the node waits for its podCIDR. Until then an existing configuration of ours belongs to another or earlier
// node: pods with its addresses would lose their gateway when the right range arrives.
func (n *podNetwork) wantsRange() bool {
	return n.options.Dir != "-" && len(n.ranges()) == 0 && cni.Other(n.options.Dir) == ""
}

// remind writes the CNI configuration again while the runtime reports that it has no network. A runtime watches the directory, and may miss
// a change: without another change it would never look again. The configuration may also have been removed.
func (n *podNetwork) remind(unplugged bool) {
	cidrs := n.ranges()
	if !unplugged || len(cidrs) == 0 {
		n.reminders.Clear()
		return
	}
	now := n.clock.Now()
	if err := n.install(true, cidrs...); err != nil {
		n.reminders.Log(now, n.logger.Error, "Could not update the pod network of the container runtime, retrying", "err", err)
		return
	}
	n.reminders.Log(now, n.logger.Info, "Wrote the configuration of the pod network again, because the container runtime has no network",
		"dir", n.options.Dir)
}

// InstallNetwork configures the pod network for the configured range, if any.
func (m *Manager) InstallNetwork() error {
	if m.PodCIDR == "" {
		return nil
	}
	return m.pods.install(false, m.PodCIDR)
}

// WatchNetwork writes the CNI configuration again when it is removed, until ctx is done.
func (m *Manager) WatchNetwork(ctx context.Context) error {
	if m.Network.Dir == "-" {
		return nil
	}
	var removals backoff.Failures
	err := cni.Watch(ctx, m.Network.Dir, func() {
		cidrs := m.pods.ranges()
		if len(cidrs) == 0 {
			return
		}
		if err := m.pods.install(true, cidrs...); err != nil {
			removals.Log(m.Clock.Now(), m.Logger.Error, "The configuration of the pod network was removed, and could not be written again",
				"dir", m.Network.Dir, "err", err)
		} else {
			removals.Log(m.Clock.Now(), m.Logger.Warn, "The configuration of the pod network was removed, and is written again", "dir", m.Network.Dir)
		}
		m.Resync()
	})
	if err != nil && ctx.Err() == nil {
		m.Logger.Error("Could not watch the configuration of the pod network, so that it is not written again at once when it is removed",
			"err", err)
	}
	return nil
}

// network configures the pod network for the podCIDRs of the Node, unless the node has a configured range.
func (m *Manager) network(ctx context.Context, node *corev1.Node) error {
	if m.PodCIDR != "" {
		return nil
	}
	cidrs := node.Spec.PodCIDRs
	if len(cidrs) == 0 && node.Spec.PodCIDR != "" {
		cidrs = []string{node.Spec.PodCIDR}
	}
	if len(cidrs) == 0 || slices.Equal(cidrs, m.pods.ranges()) {
		return nil
	}
	if err := m.pods.install(false, cidrs...); err != nil {
		return err
	}
	m.pods.mu.Lock()
	m.pods.given = cidrs
	m.pods.mu.Unlock()
	m.CheckRuntime(ctx)
	return nil
}

// Informer makes the informer of the Node. From it the manager learns the Node's newest version and its podCIDRs.
func (m *Manager) Informer() (informers.SharedInformerFactory, error) {
	own := informers.NewSharedInformerFactoryWithOptions(m.Client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", m.NodeName).String()
	}))
	given := func(before, after *corev1.Node) {
		if after.Name != m.NodeName {
			return
		}
		m.saw(after)
		if m.PodCIDR == "" && m.Network.Dir != "-" && !slices.Equal(before.Spec.PodCIDRs, after.Spec.PodCIDRs) {
			m.Resync() // the heartbeat checks the range
		}
	}
	_, err := own.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { given(&corev1.Node{}, obj.(*corev1.Node)) },
		UpdateFunc: func(old, obj any) { given(old.(*corev1.Node), obj.(*corev1.Node)) },
	})
	if err != nil {
		return nil, fmt.Errorf("follow own node: %w", err)
	}
	return own, nil
}
