// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/api/config/v1alpha1"
	"github.com/mortise-dev/mortise/internal/agent/allocatable"
	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
	"github.com/mortise-dev/mortise/internal/objectversion"
	"github.com/mortise-dev/mortise/internal/servingkey"
	"github.com/mortise-dev/mortise/internal/version"
)

// Annotations of Nodes.
const (
	attachDetach = "volumes.kubernetes.io/controller-managed-attach-detach"
	providedIP   = "alpha.kubernetes.io/provided-node-ip" // of nodes with a cloud provider
)

// uninitialized is the taint of a node that no cloud's controller manager has initialized.
const uninitialized = "node.cloudprovider.kubernetes.io/uninitialized"

// defaultLabels are the labels that registration always sets if the node knows a value.
var defaultLabels = []string{
	corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone,
	corev1.LabelFailureDomainBetaRegion, corev1.LabelInstanceTypeStable, corev1.LabelInstanceType, corev1.LabelOSStable,
	corev1.LabelArchStable, "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
}

// Node returns the newest Node of the informer; before the first one, the Node as it will be registered. The caller must not change it.
func (m *Manager) Node() *corev1.Node {
	m.mu.Lock()
	newest := m.newest
	m.mu.Unlock()
	if newest != nil {
		return newest
	}
	return m.initial()
}

// FetchNode reads the Node from the API server.
func (m *Manager) FetchNode(ctx context.Context) (*corev1.Node, error) {
	node, err := m.Client.CoreV1().Nodes().Get(ctx, m.NodeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get node %s: %w", m.NodeName, err)
	}
	m.saw(node)
	return node, nil
}

// saw stores a Node from the API server, unless it is older than the stored one.
func (m *Manager) saw(node *corev1.Node) {
	m.mu.Lock()
	newer := m.newest == nil || !objectversion.Older(node, m.newest)
	if newer {
		m.newest = node
	}
	m.mu.Unlock()
	if newer && m.Volumes != nil {
		m.Volumes.Saw(node)
	}
}

// initial returns the Node to register.
func (m *Manager) initial() *corev1.Node {
	node := &corev1.Node{}
	node.Name, node.Labels, node.Annotations = m.NodeName, labels(m.NodeName, m.Labels), map[string]string{}
	annotate(node, &m.Config)
	if *m.Kubelet.EnableControllerAttachDetach {
		node.Annotations[attachDetach] = "true"
	}
	node.Spec.ProviderID, node.Spec.Taints = m.Kubelet.ProviderID, slices.Clone(m.Kubelet.RegisterWithTaints)
	if m.Cloud.External {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: uninitialized, Value: "true", Effect: corev1.TaintEffectNoSchedule})
	}
	m.setStatus(&node.Status)
	return node
}

// labels returns the labels of a new Node.
func labels(name string, more map[string]string) map[string]string {
	labels := map[string]string{
		corev1.LabelHostname: name, corev1.LabelOSStable: runtime.GOOS, corev1.LabelArchStable: runtime.GOARCH,
		"beta.kubernetes.io/os": runtime.GOOS, "beta.kubernetes.io/arch": runtime.GOARCH,
	}
	maps.Copy(labels, more)
	return labels
}

// annotate sets the annotations that depend on the node's state.
func annotate(node *corev1.Node, c *Config) {
	for name, value := range map[string]string{
		providedIP: c.Cloud.provided(c.Addresses), servingkey.Annotation: servingkey.Published(c.TLS),
		v1alpha1.LoadBalancerAddressesAnnotation: c.Cloud.outside(),
	} {
		if delete(node.Annotations, name); value != "" {
			node.Annotations[name] = value
		}
	}
}

// provided returns the configured addresses for a cloud's controller manager to confirm; empty: it chooses.
func (c *Cloud) provided(own Addresses) string {
	if !c.External || !c.Given {
		return ""
	}
	return strings.Join(own.Texts(), ",")
}

// outside returns the addresses for load balancers, unless they are the node's.
func (c *Cloud) outside() string {
	if c.Outside == nil {
		return ""
	}
	texts := slices.DeleteFunc(c.Outside.Texts(), func(text string) bool {
		a, err := netip.ParseAddr(text)
		return err != nil || a.IsLoopback() // the machine has no network
	})
	return strings.Join(texts, ",")
}

// updated returns the Node with all fields that the node owns. Fields of others stay: docs/nodes.md lists the owners.
func (m *Manager) updated(have *corev1.Node) *corev1.Node {
	node := have.DeepCopy()
	if node.Labels == nil {
		node.Labels = map[string]string{}
	}
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	node.Labels[corev1.LabelOSStable], node.Labels[corev1.LabelArchStable] = runtime.GOOS, runtime.GOARCH
	annotate(node, &m.Config)
	m.setStatus(&node.Status)
	return node
}

// adopted returns a Node that existed before the registration, with all fields that the node owns, and those that registration sets.
func (m *Manager) adopted(have *corev1.Node) *corev1.Node {
	if m.Record != nil && m.Record.Missing() {
		have = emptied(have)
	}
	node, known := m.updated(have), labels(m.NodeName, m.Labels)
	for _, name := range defaultLabels {
		if value, is := known[name]; is {
			node.Labels[name] = value
		}
	}
	delete(node.Annotations, attachDetach)
	if *m.Kubelet.EnableControllerAttachDetach {
		node.Annotations[attachDetach] = "true"
	}
	return node
}

// emptied returns a Node whose extended resources are zero.
func emptied(node *corev1.Node) *corev1.Node {
	node = node.DeepCopy()
	for name := range node.Status.Capacity {
		if allocatable.IsExtended(name) {
			node.Status.Capacity[name] = resource.Quantity{} // setResources makes all of it allocatable
		}
	}
	return node
}

// setStatus sets the node's fields of the status.
func (m *Manager) setStatus(s *corev1.NodeStatus) {
	capacity, free := m.Resources.Capacity(), m.Resources.Allocatable()
	if m.Plugins != nil {
		theirs, healthy := m.Plugins.Capacity()
		maps.Copy(capacity, theirs)
		maps.Copy(free, healthy)
	}
	setResources(s, capacity, free)
	s.DeclaredFeatures = kubeletconfig.Features(m.Kubelet)
	var own []corev1.NodeAddress
	for _, ip := range m.Addresses.Texts() {
		own = append(own, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	own = append(own, corev1.NodeAddress{Type: corev1.NodeHostName, Address: m.NodeName})
	switch {
	case !m.Cloud.External:
		s.Addresses = mergeAddresses(s.Addresses, own)
	case len(s.Addresses) > 0: // the cloud's, or the first ones
	case m.Cloud.Given:
		s.Addresses = own
	default:
		s.Addresses = own[len(own)-1:]
	}
	s.DaemonEndpoints = corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: m.Port}}
	s.NodeInfo = corev1.NodeSystemInfo{
		MachineID: m.Resources.Machine.MachineID, SystemUUID: m.Resources.Machine.SystemUUID, BootID: m.Resources.Machine.BootID,
		KernelVersion: m.Resources.Machine.Kernel, OSImage: m.Resources.Machine.OSImage,
		ContainerRuntimeVersion: m.Runtime.Name + "://" + strings.TrimPrefix(m.Runtime.Version, "v"),
		KubeletVersion:          version.Get().GitVersion, OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
	}
	if m.Resources.Machine.Swap > 0 { // the API server rejects a capacity of zero
		s.NodeInfo.Swap = &corev1.NodeSwapStatus{Capacity: &m.Resources.Machine.Swap}
	}
	m.setConditions(s)
	s.VolumesInUse = nil
	if m.Volumes != nil {
		s.VolumesInUse = m.Volumes.InUse()
	}
	m.mu.Lock()
	s.Images = slices.Clone(m.listed)
	s.RuntimeHandlers, s.Features = slices.Clone(m.handlers), &corev1.NodeFeatures{SupplementalGroupsPolicy: new(m.strictGroups)}
	m.mu.Unlock()
}

// setResources sets the node's own resources. Resources that others added to the capacity stay, and are allocatable as a whole; of these
// the node removes huge pages only.
func setResources(s *corev1.NodeStatus, capacity, left corev1.ResourceList) {
	all, free := corev1.ResourceList{}, corev1.ResourceList{}
	maps.Copy(all, s.Capacity)
	maps.Copy(free, s.Allocatable)
	for name := range s.Capacity {
		if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			delete(all, name)
		}
	}
	maps.Copy(all, capacity)
	for name := range s.Allocatable {
		_, there := all[name]
		if !there && (allocatable.IsExtended(name) || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)) {
			delete(free, name)
		}
	}
	maps.Copy(free, all)
	maps.Copy(free, left)
	s.Capacity, s.Allocatable = all, free
}

// mergeAddresses returns the node's own addresses (internal IPs and host name) and those that others have added.
func mergeAddresses(have, own []corev1.NodeAddress) []corev1.NodeAddress {
	foreign := func(a corev1.NodeAddress) bool {
		return a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeHostName
	}
	if slices.Equal(slices.DeleteFunc(slices.Clone(have), foreign), own) {
		return have // in the existing order
	}
	return append(own, slices.DeleteFunc(slices.Clone(have), func(a corev1.NodeAddress) bool { return !foreign(a) })...)
}
