// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// nodeIDs is the annotation of a Node with the node's names at its drivers.
const nodeIDs = "csi.volume.kubernetes.io/nodeid"

// migrated are the in-tree plug-ins whose volumes CSI drivers serve. The scheduler and the controllers read them in the CSINode.
var migrated = []string{
	"kubernetes.io/aws-ebs", "kubernetes.io/azure-disk", "kubernetes.io/azure-file", "kubernetes.io/cinder", "kubernetes.io/gce-pd",
	"kubernetes.io/portworx-volume", "kubernetes.io/vsphere-volume",
}

// attempts bounds the attempts of an update that conflicts with others'.
const attempts = 4

// The limits of what a driver says of the node, in bytes. They are the CSI specification's: the ID has 256, a map 4 KiB.
const (
	longestID       = 256
	largestTopology = 4 << 10
)

// nodeInfo writes what drivers say of the node.
type nodeInfo struct {
	client kubernetes.Interface
	name   string

	mu sync.Mutex // held during an update
}

// said is what a driver says of the node.
type said struct {
	driver, id string
	most       int64 // volumes; 0: no limit
	topology   map[string]string
}

// ask asks a driver about the node.
func ask(ctx context.Context, driver string, client csipb.NodeClient) (said, error) {
	answer, err := client.NodeGetInfo(ctx, &csipb.NodeGetInfoRequest{})
	if err != nil {
		return said{}, err
	}
	info := said{
		driver: driver, id: answer.GetNodeId(), most: answer.GetMaxVolumesPerNode(), topology: answer.GetAccessibleTopology().GetSegments(),
	}
	return info, info.check()
}

// check refuses an answer that is larger than the CSI specification allows: it would become labels and annotations of the Node.
func (s said) check() error {
	size := 0
	for k, v := range s.topology {
		size += len(k) + len(v)
	}
	switch {
	case len(s.id) > longestID:
		return fmt.Errorf("the node ID has %d bytes, more than the %d that CSI allows", len(s.id), longestID)
	case size > largestTopology:
		return fmt.Errorf("the topology has %d bytes, more than the %d that CSI allows", size, largestTopology)
	}
	return nil
}

// replaces reports whether an answer names the node or the keys of its topology otherwise than a driver of a CSINode did. These fields
// do not change in place.
func (s said) replaces(d storagev1.CSINodeDriver) bool {
	return d.Name == s.driver && (d.NodeID != s.id || !slices.Equal(slices.Sorted(slices.Values(d.TopologyKeys)),
		slices.Sorted(maps.Keys(s.topology))))
}

// publish asks a driver about the node, and publishes the answer in the Node and the CSINode. The messages are upstream's.
func (n *nodeInfo) publish(ctx context.Context, driver string, client csipb.NodeClient) error {
	info, err := ask(ctx, driver, client)
	if err != nil {
		return err
	}
	if info.id == "" {
		return errors.New("error adding CSI driver node info: driverNodeID must not be empty")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.patchNode(ctx, func(node *corev1.Node) error {
		if err := addTopology(node, info.topology); err != nil {
			return err
		}
		return setNodeID(node, driver, info.id)
	}); err != nil {
		return fmt.Errorf("error updating Node object with CSI driver node info: %w", err)
	}
	// A process of the node that was killed has left the driver there, which names the node otherwise now.
	if err := n.updateCSINode(ctx, func(node *storagev1.CSINode) {
		node.Spec.Drivers = slices.DeleteFunc(node.Spec.Drivers, info.replaces)
	}); err != nil {
		return fmt.Errorf("error uninstalling CSI driver from CSINode object %w", err)
	}
	if err := n.updateCSINode(ctx, func(node *storagev1.CSINode) { install(node, info) }); err != nil {
		return fmt.Errorf("error updating CSINode object with CSI driver node info: %w", err)
	}
	return nil
}

// refresh asks a driver about the node again, and updates its limit of volumes in the CSINode. A driver that names the node or the keys of
// its topology otherwise than when it registered has to register anew.
func (n *nodeInfo) refresh(ctx context.Context, driver string, client csipb.NodeClient) error {
	info, err := ask(ctx, driver, client)
	if err != nil {
		return fmt.Errorf("failed to get NodeGetInfo from driver %q: %w", driver, err) // upstream's words
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	var other *storagev1.CSINodeDriver
	if err := n.updateCSINode(ctx, func(node *storagev1.CSINode) {
		other = nil
		if at := slices.IndexFunc(node.Spec.Drivers, info.replaces); at >= 0 {
			other = node.Spec.Drivers[at].DeepCopy()
			return
		}
		install(node, info)
	}); err != nil || other == nil {
		return err
	}
	return fmt.Errorf("driver %q says that the node is %q with topology keys %q, and has registered it as %q with %q", driver, info.id,
		slices.Sorted(maps.Keys(info.topology)), other.NodeID, other.TopologyKeys)
}

// remove removes a driver from the CSINode and the Node's annotation. The topology labels stay, as with kubelet.
func (n *nodeInfo) remove(ctx context.Context, driver string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	gone := func(d storagev1.CSINodeDriver) bool { return d.Name == driver }
	if err := n.updateCSINode(ctx, func(node *storagev1.CSINode) {
		node.Spec.Drivers = slices.DeleteFunc(node.Spec.Drivers, gone)
	}); err != nil {
		return fmt.Errorf("error uninstalling CSI driver from CSINode object %w", err) // upstream's words
	}
	if err := n.patchNode(ctx, func(node *corev1.Node) error { return setNodeID(node, driver, "") }); err != nil {
		return fmt.Errorf("error removing CSI driver node info from Node object %w", err) // upstream's words
	}
	return nil
}

// initialize makes the CSINode, or adopts the one that is there.
func (n *nodeInfo) initialize(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.updateCSINode(ctx, func(*storagev1.CSINode) {})
}

// patchNode changes the Node's labels and annotations.
func (n *nodeInfo) patchNode(ctx context.Context, change func(*corev1.Node) error) error {
	have, err := n.client.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	want := have.DeepCopy()
	if err := change(want); err != nil {
		return err
	}
	patch := map[string]map[string]any{"labels": {}, "annotations": {}}
	differ(patch["labels"], have.Labels, want.Labels)
	differ(patch["annotations"], have.Annotations, want.Annotations)
	if len(patch["labels"])+len(patch["annotations"]) == 0 {
		return nil
	}
	data, err := json.Marshal(map[string]any{"metadata": patch})
	if err != nil {
		return fmt.Errorf("encode change of node: %w", err)
	}
	_, err = n.client.CoreV1().Nodes().Patch(ctx, n.name, types.StrategicMergePatchType, data, metav1.PatchOptions{}, "status")
	return err
}

// differ adds what turns one map into another.
func differ(to map[string]any, have, want map[string]string) {
	for k, v := range want {
		if was, ok := have[k]; !ok || was != v {
			to[k] = v
		}
	}
	for k := range have {
		if _, ok := want[k]; !ok {
			to[k] = nil
		}
	}
}

// addTopology adds the labels of the driver's topology. It refuses to change one.
func addTopology(node *corev1.Node, topology map[string]string) error {
	for k, v := range topology {
		if have, ok := node.Labels[k]; ok && have != v {
			return fmt.Errorf("detected topology value collision: driver reported %q:%q but existing label is %q:%q", k, v, k, have)
		}
	}
	if node.Labels == nil {
		node.Labels = map[string]string{}
	}
	maps.Copy(node.Labels, topology)
	return nil
}

// setNodeID notes the node's name at a driver in the Node's annotation; an empty name removes the driver.
func setNodeID(node *corev1.Node, driver, id string) error {
	all := map[string]string{}
	if text := node.Annotations[nodeIDs]; text != "" {
		if err := json.Unmarshal([]byte(text), &all); err != nil {
			return fmt.Errorf("failed to parse node's %q annotation value (%q) err=%w", nodeIDs, text, err) // upstream's words
		}
	}
	if all == nil { // the annotation was null
		all = map[string]string{}
	}
	if all[driver] = id; id == "" {
		delete(all, driver)
	}
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	if len(all) == 0 {
		delete(node.Annotations, nodeIDs)
		return nil
	}
	text, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("encode node IDs: %w", err)
	}
	node.Annotations[nodeIDs] = string(text)
	return nil
}

// updateCSINode changes the CSINode of this Node; it makes one if there is none, and replaces the one of a former Node of the name.
func (n *nodeInfo) updateCSINode(ctx context.Context, change func(*storagev1.CSINode)) (err error) {
	for range attempts {
		if err = n.tryCSINode(ctx, change); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return err
}

func (n *nodeInfo) tryCSINode(ctx context.Context, change func(*storagev1.CSINode)) error {
	owner, err := n.client.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	nodes := n.client.StorageV1().CSINodes()
	have, err := nodes.Get(ctx, n.name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err == nil && !owns(owner, have) {
		if err := nodes.Delete(ctx, n.name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete CSINode of a former node: %w", err)
		}
		have, err = nil, apierrors.NewNotFound(storagev1.Resource("csinodes"), n.name)
	}
	if err != nil {
		made := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: n.name, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: n.name, UID: owner.UID},
		}}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{}}}
		markMigrated(made)
		change(made)
		_, err := nodes.Create(ctx, made, metav1.CreateOptions{})
		return err
	}
	want := have.DeepCopy()
	markMigrated(want)
	change(want)
	const marked = corev1.MigratedPluginsAnnotationKey
	if sameDrivers(have, want) && have.Annotations[marked] == want.Annotations[marked] {
		return nil
	}
	_, err = nodes.Update(ctx, want, metav1.UpdateOptions{})
	return err
}

// owns reports whether the CSINode belongs to the Node.
func owns(node *corev1.Node, of *storagev1.CSINode) bool {
	return slices.ContainsFunc(of.OwnerReferences, func(r metav1.OwnerReference) bool {
		return r.Kind == "Node" && r.Name == node.Name && r.UID == node.UID
	})
}

func markMigrated(node *storagev1.CSINode) {
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	node.Annotations[corev1.MigratedPluginsAnnotationKey] = strings.Join(migrated, ",")
}

// install puts a driver into the CSINode. One that says the same as before keeps its place.
func install(node *storagev1.CSINode, info said) {
	made := storagev1.CSINodeDriver{Name: info.driver, NodeID: info.id, TopologyKeys: slices.Sorted(maps.Keys(info.topology))}
	if info.most > 0 { // a negative limit is none
		made.Allocatable = &storagev1.VolumeNodeResources{Count: new(int32(min(info.most, math.MaxInt32)))}
	}
	at := slices.IndexFunc(node.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == info.driver })
	if at >= 0 && sameDriver(node.Spec.Drivers[at], made) {
		return
	}
	if at >= 0 {
		node.Spec.Drivers = slices.Delete(node.Spec.Drivers, at, at+1)
	}
	node.Spec.Drivers = append(node.Spec.Drivers, made)
}

func sameDriver(a, b storagev1.CSINodeDriver) bool {
	count := func(d storagev1.CSINodeDriver) int32 {
		if d.Allocatable == nil || d.Allocatable.Count == nil {
			return -1
		}
		return *d.Allocatable.Count
	}
	return a.Name == b.Name && a.NodeID == b.NodeID && count(a) == count(b) &&
		slices.Equal(slices.Sorted(slices.Values(a.TopologyKeys)), slices.Sorted(slices.Values(b.TopologyKeys)))
}

func sameDrivers(a, b *storagev1.CSINode) bool {
	return slices.EqualFunc(a.Spec.Drivers, b.Spec.Drivers, sameDriver)
}
