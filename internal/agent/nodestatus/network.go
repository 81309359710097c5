// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/mortise-dev/mortise/internal/agent/cni"
)

// InstallNetwork configures the pod network for the range that the node was configured with, if any.
func (m *Manager) InstallNetwork() error {
	if m.PodCIDR == "" {
		return nil
	}
	return m.installCNI(false, m.PodCIDR)
}

// installCNI configures the pod network if no other configuration exists. Again: also if it is configured already.
func (m *Manager) installCNI(again bool, cidrs ...string) error {
	if m.Network.Dir == "-" {
		return nil
	}
	options := m.Network
	options.PodCIDRs, options.Again = cidrs, again
	path, ours, err := cni.Install(options)
	if err != nil {
		return fmt.Errorf("install CNI configuration: %w", err)
	}
	m.Logger.Info("Pod network is configured", "file", path, "ours", ours, "again", again)
	return nil
}

// wantsRange says whether the node waits for the range of its pods' addresses. Until then a configuration that is there, if it is ours, is
// of another node or of an earlier one: pods that got addresses of it would lose their gateway when the right one comes.
func (m *Manager) wantsRange() bool {
	return m.PodCIDR == "" && m.Network.Dir != "-" && m.installed == nil && cni.Other(m.Network.Dir) == ""
}

// network installs the pod network that the API server has given to the node, if it has
// none of its own.
func (m *Manager) network(ctx context.Context, node *corev1.Node) error {
	if m.PodCIDR != "" {
		return nil
	}
	cidrs := node.Spec.PodCIDRs
	if len(cidrs) == 0 && node.Spec.PodCIDR != "" {
		cidrs = []string{node.Spec.PodCIDR}
	}
	if len(cidrs) == 0 || slices.Equal(cidrs, m.installed) {
		return nil
	}
	if err := m.installCNI(false, cidrs...); err != nil {
		return err
	}
	m.installed = cidrs
	m.CheckRuntime(ctx)
	return nil
}

// remind writes the configuration of the pod network again where the runtime still says that it has none. A runtime watches the directory,
// and may miss a change: without another it would never look again. The configuration may also have been removed.
func (m *Manager) remind() {
	m.mu.Lock()
	unplugged := m.ready.unplugged
	m.mu.Unlock()
	cidrs := m.installed
	if m.PodCIDR != "" {
		cidrs = []string{m.PodCIDR}
	}
	if !unplugged || len(cidrs) == 0 {
		return
	}
	if err := m.installCNI(true, cidrs...); err != nil {
		m.Logger.Error("Could not update the pod network of the container runtime", "err", err)
	}
}

// Informer makes the informer of the Node. By it the manager knows the Node as the API server has it, and hears when the Node is given
// its range of addresses.
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
			m.Resync() // the heartbeat looks
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
