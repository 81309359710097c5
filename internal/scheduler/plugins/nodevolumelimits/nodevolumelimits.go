// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodevolumelimits is the NodeVolumeLimits plug-in: it limits the volumes of a CSI driver on a node to the number in its CSINode
// (KEP-554), and rejects nodes without the driver if the CSIDriver demands this (KEP-5030).
//
// A volume counts once however many pods of the node use it, and also while a VolumeAttachment without a pod exists. An unbound claim
// counts as a volume of its class's driver.
package nodevolumelimits

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/claims"
	"github.com/mortise-dev/mortise/internal/scheduler/migrated"
)

// Name is the plug-in's name.
const Name = "NodeVolumeLimits"

// byNode is the index of attachments by node.
const byNode = "node"

// New returns the plug-in.
func New(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	f := h.SharedInformerFactory()
	attachments := f.Storage().V1().VolumeAttachments().Informer()
	err := attachments.AddIndexers(cache.Indexers{byNode: func(obj any) ([]string, error) {
		if a, ok := obj.(*storagev1.VolumeAttachment); ok {
			return []string{a.Spec.NodeName}, nil
		}
		return nil, nil
	}})
	// another profile's plug-in may have added it
	if _, missing := attachments.GetIndexer().IndexKeys(byNode, ""); err != nil && missing != nil {
		return nil, fmt.Errorf("index volume attachments: %w", err)
	}
	return &plugin{
		nodes: h.SharedCSIManager().CSINodes(), attachments: attachments.GetIndexer(), migrated: migrated.New(),
		volumes: f.Core().V1().PersistentVolumes().Lister(), claims: f.Core().V1().PersistentVolumeClaims().Lister(),
		classes: f.Storage().V1().StorageClasses().Lister(), drivers: f.Storage().V1().CSIDrivers().Lister(),
	}, nil
}

type plugin struct {
	claims.Signer

	nodes       fwk.CSINodeLister
	attachments cache.Indexer
	volumes     corelisters.PersistentVolumeLister
	claims      corelisters.PersistentVolumeClaimLister
	classes     storagelisters.StorageClassLister
	drivers     storagelisters.CSIDriverLister
	migrated    migrated.Drivers
}

func (*plugin) Name() string { return Name }

// PreFilter skips pods without CSI volumes.
func (p *plugin) PreFilter(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	if !slices.ContainsFunc(pod.Spec.Volumes, p.counts) {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	return nil, nil
}

// counts reports whether a volume may belong to a CSI driver.
func (p *plugin) counts(v corev1.Volume) bool {
	return v.PersistentVolumeClaim != nil || v.Ephemeral != nil || p.migrated.IsInlineMigratable(&v)
}

// PreFilterExtensions returns nil: Filter reads the node's pods.
func (*plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter rejects nodes that can have no more volumes, or lack a driver.
func (p *plugin) Filter(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	csi, err := p.nodes.Get(node.Node().Name)
	if err != nil {
		csi = nil // the node reports no driver
	}
	wanted := map[attached]bool{}
	if err := p.add(wanted, pod, csi, true); err != nil {
		if apierrors.IsNotFound(err) {
			return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
		}
		return fwk.AsStatus(err)
	}
	if len(wanted) == 0 {
		return nil
	}
	for w := range wanted {
		lacks, err := p.lacks(csi, w.driver)
		if err != nil {
			return fwk.AsStatus(err)
		}
		if lacks {
			return fwk.NewStatus(fwk.Unschedulable, w.driver+" CSI driver is not installed on the node") // upstream's words
		}
	}
	most := limits(csi)
	if len(most) == 0 {
		return nil
	}
	used := map[attached]bool{}
	for _, other := range node.GetPods() {
		if err := p.add(used, other.GetPod(), csi, false); err != nil {
			return fwk.AsStatus(err)
		}
	}
	count := map[string]int{}
	for a := range used {
		count[a.driver]++
		delete(wanted, a)
	}
	left, err := p.attachedTo(node.Node().Name)
	if err != nil {
		return fwk.AsStatus(err)
	}
	for a := range left {
		if !used[a] {
			count[a.driver]++
		}
	}
	more := map[string]int{}
	for a := range wanted {
		more[a.driver]++
	}
	for driver, n := range more {
		if limit, ok := most[driver]; ok && count[driver]+n > limit {
			return fwk.NewStatus(fwk.Unschedulable, "node(s) exceed max volume count")
		}
	}
	return nil
}

// attached is a volume of a driver.
type attached struct{ driver, volume string }

// add adds a pod's volumes that drivers attach. For an incoming pod, all claims must exist.
func (p *plugin) add(to map[attached]bool, pod *corev1.Pod, csi *storagev1.CSINode, fresh bool) error {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.PersistentVolumeClaim == nil && v.Ephemeral == nil {
			if err := p.addInline(to, pod, v, csi); err != nil {
				return err
			}
		}
	}
	for name, own := range claims.Of(pod) {
		if name == "" {
			return fmt.Errorf("PersistentVolumeClaim had no name") // upstream's words
		}
		claim, err := p.claims.PersistentVolumeClaims(pod.Namespace).Get(name)
		if err != nil {
			if fresh {
				return fmt.Errorf("looking up PVC %s/%s: %w", pod.Namespace, name, err) // upstream's words
			}
			continue // its driver is unknown
		}
		if own {
			if err := ephemeral.VolumeIsForPod(pod, claim); err != nil {
				return err
			}
		}
		if a := p.of(claim, csi); a.driver != "" && a.volume != "" {
			to[a] = true
		}
	}
	return nil
}

// addInline adds a volume of a former in-tree driver that the pod itself describes.
func (p *plugin) addInline(to map[attached]bool, pod *corev1.Pod, v *corev1.Volume, csi *storagev1.CSINode) error {
	if !p.migrated.IsInlineMigratable(v) {
		return nil
	}
	driver, err := p.migrated.GetInTreePluginNameFromSpec(nil, v)
	if err != nil {
		return fmt.Errorf("looking up provisioner name for volume %s: %w", v.Name, err) // upstream's words
	}
	if csi == nil || !migrated.On(driver) {
		return nil
	}
	pv, err := p.migrated.TranslateInTreeInlineVolumeToCSI(klog.Logger{}, v, pod.Namespace)
	if err != nil || pv == nil {
		return fmt.Errorf("converting volume(%s) from inline to csi: %w", v.Name, err) // upstream's words
	}
	if of := pv.Spec.CSI; of != nil {
		to[attached{of.Driver, of.VolumeHandle}] = true
	}
	return nil
}

// of returns the volume of a claim; the zero value if no driver attaches it.
func (p *plugin) of(claim *corev1.PersistentVolumeClaim, csi *storagev1.CSINode) attached {
	if claim.Spec.VolumeName == "" {
		return p.ofClass(claim, csi)
	}
	pv, err := p.volumes.Get(claim.Spec.VolumeName)
	if err != nil {
		return p.ofClass(claim, csi) // it is deleted, or not created yet
	}
	source := pv.Spec.CSI
	if source == nil {
		if !p.migrated.IsPVMigratable(pv) {
			return attached{}
		}
		if driver, err := p.migrated.GetInTreePluginNameFromSpec(pv, nil); err != nil || csi == nil || !migrated.On(driver) {
			return attached{}
		}
		translated, err := p.migrated.TranslateInTreePVToCSI(klog.Logger{}, pv)
		if err != nil || translated.Spec.CSI == nil {
			return attached{}
		}
		source = translated.Spec.CSI
	}
	return attached{source.Driver, source.VolumeHandle}
}

// ofClass returns the volume that the class's driver will create for a claim.
func (p *plugin) ofClass(claim *corev1.PersistentVolumeClaim, csi *storagev1.CSINode) attached {
	name := volume.GetPersistentVolumeClaimClass(claim)
	if name == "" {
		return attached{}
	}
	class, err := p.classes.Get(name)
	if err != nil {
		return attached{}
	}
	a := attached{driver: class.Provisioner, volume: "claim " + claim.Namespace + "/" + claim.Name} // no handle has a space
	if !p.migrated.IsMigratableIntreePluginByName(a.driver) {
		return a
	}
	if csi == nil || !migrated.On(a.driver) {
		return attached{}
	}
	if a.driver, err = p.migrated.GetCSINameFromInTreeName(a.driver); err != nil {
		return attached{}
	}
	return a
}

// attachedTo returns the volumes that are attached to a node.
func (p *plugin) attachedTo(node string) (map[attached]bool, error) {
	objects, err := p.attachments.ByIndex(byNode, node)
	if err != nil {
		return nil, fmt.Errorf("look up volume attachments: %w", err)
	}
	found := map[attached]bool{}
	for _, o := range objects {
		a, ok := o.(*storagev1.VolumeAttachment)
		if !ok || a.Spec.Attacher == "" || a.Spec.Source.PersistentVolumeName == nil {
			continue
		}
		if pv, err := p.volumes.Get(*a.Spec.Source.PersistentVolumeName); err == nil && pv.Spec.CSI != nil {
			found[attached{a.Spec.Attacher, pv.Spec.CSI.VolumeHandle}] = true
		}
	}
	return found, nil
}

// lacks reports whether the node lacks a driver whose CSIDriver keeps pods away from such nodes.
func (p *plugin) lacks(csi *storagev1.CSINode, driver string) (bool, error) {
	of, err := p.drivers.Get(driver)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("error getting CSIDriver for provider %s: %w", driver, err) // upstream's words
	case of.Spec.PreventPodSchedulingIfMissing == nil || !*of.Spec.PreventPodSchedulingIfMissing:
		return false, nil
	}
	return csi == nil || !slices.ContainsFunc(csi.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == driver }), nil
}

// limits returns the maximum number of volumes of each driver on a node; a driver without an entry has no limit.
func limits(csi *storagev1.CSINode) map[string]int {
	if csi == nil {
		return nil
	}
	most := map[string]int{}
	for _, d := range csi.Spec.Drivers {
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			most[d.Name] = int(*d.Allocatable.Count)
		}
	}
	return most
}
