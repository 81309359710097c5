// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package volumerestrictions is the VolumeRestrictions plug-in: it enforces exclusive volumes. It rejects a node where
// another pod uses the same disk and one of them writes to it, and allows a claim with ReadWriteOncePod (KEP-2485) to one
// pod in the cluster only.
package volumerestrictions

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/claims"
)

// Name is the plug-in's name.
const Name = "VolumeRestrictions"

const filterKey fwk.StateKey = "PreFilter" + Name

// New returns the plug-in.
func New(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	return &plugin{claims: h.SharedInformerFactory().Core().V1().PersistentVolumeClaims().Lister(), lister: h.SnapshotSharedLister()}, nil
}

type plugin struct {
	claims.Signer

	claims corelisters.PersistentVolumeClaimLister
	lister fwk.SharedLister
}

func (*plugin) Name() string { return Name }

// EventsToRegister registers the deletion of a pod with one of the volumes, new nodes, and new claims.
func (*plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}, QueueingHintFn: afterPod},
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add}},
		{Event: fwk.ClusterEvent{Resource: fwk.PersistentVolumeClaim, ActionType: fwk.Add}, QueueingHintFn: claims.Changed},
	}, nil
}

func afterPod(_ klog.Logger, pod *corev1.Pod, oldObj, _ any) (fwk.QueueingHint, error) {
	gone, ok := oldObj.(*corev1.Pod)
	if !ok {
		return fwk.Queue, nil
	}
	if gone.Namespace != pod.Namespace {
		return fwk.QueueSkip, nil
	}
	if conflict(pod, gone) {
		return fwk.Queue, nil
	}
	for _, v := range pod.Spec.Volumes {
		if c := v.PersistentVolumeClaim; c != nil && slices.ContainsFunc(gone.Spec.Volumes, func(v corev1.Volume) bool {
			return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == c.ClaimName
		}) {
			return fwk.Queue, nil
		}
	}
	return fwk.QueueSkip, nil
}

// alone is the pod's ReadWriteOncePod claims, and how many pods use them.
type alone struct {
	names sets.Set[string]
	used  int
}

// Clone copies the count.
func (a *alone) Clone() fwk.StateData {
	c := *a
	return &c
}

func (a *alone) count(p fwk.PodInfo, sign int) {
	for _, v := range p.GetPod().Spec.Volumes {
		if c := v.PersistentVolumeClaim; c != nil && a.names.Has(c.ClaimName) {
			a.used += sign
		}
	}
}

// PreFilter skips pods whose volumes cannot conflict.
func (p *plugin) PreFilter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	a := &alone{names: sets.New[string]()}
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		claim, err := p.claims.PersistentVolumeClaims(pod.Namespace).Get(v.PersistentVolumeClaim.ClaimName)
		switch {
		case apierrors.IsNotFound(err):
			return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
		case err != nil:
			return nil, fwk.AsStatus(err)
		case slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod):
			a.names.Insert(claim.Name)
		}
	}
	for name := range a.names {
		if p.lister.StorageInfos().IsPVCUsedByPods(pod.Namespace + "/" + name) {
			a.used++
		}
	}
	if a.used == 0 && !slices.ContainsFunc(pod.Spec.Volumes, isDisk) {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	state.Write(filterKey, a)
	return nil, nil
}

// PreFilterExtensions returns the plug-in, which counts the pods that preemption adds and removes.
func (p *plugin) PreFilterExtensions() fwk.PreFilterExtensions { return p }

// AddPod counts an added pod.
func (*plugin) AddPod(_ context.Context, state fwk.CycleState, _ *corev1.Pod, other fwk.PodInfo, _ fwk.NodeInfo) *fwk.Status {
	a, err := read(state)
	if err != nil {
		return fwk.AsStatus(err)
	}
	a.count(other, 1)
	return nil
}

// RemovePod subtracts a removed pod.
func (*plugin) RemovePod(_ context.Context, state fwk.CycleState, _ *corev1.Pod, other fwk.PodInfo, _ fwk.NodeInfo) *fwk.Status {
	a, err := read(state)
	if err != nil {
		return fwk.AsStatus(err)
	}
	a.count(other, -1)
	return nil
}

func read(state fwk.CycleState) (*alone, error) {
	data, err := state.Read(filterKey)
	if err != nil {
		return nil, err
	}
	a, ok := data.(*alone)
	if !ok {
		return nil, errors.New("not the state of " + Name)
	}
	return a, nil
}

// Filter rejects nodes where a disk is in use, and all nodes while a ReadWriteOncePod claim is.
func (*plugin) Filter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	for _, other := range node.GetPods() {
		if conflict(pod, other.GetPod()) {
			return fwk.NewStatus(fwk.Unschedulable, "node(s) had no available disk")
		}
	}
	a, err := read(state)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if a.used > 0 {
		return fwk.NewStatus(fwk.Unschedulable,
			"node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod")
	}
	return nil
}

func isDisk(v corev1.Volume) bool {
	return v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil || v.RBD != nil || v.ISCSI != nil
}

// conflict reports whether two pods on one node use the same disk in conflicting ways. Two readers do not conflict, except for EBS.
func conflict(a, b *corev1.Pod) bool {
	for i := range a.Spec.Volumes {
		if !isDisk(a.Spec.Volumes[i]) {
			continue
		}
		for j := range b.Spec.Volumes {
			if sameDisk(&a.Spec.Volumes[i], &b.Spec.Volumes[j]) {
				return true
			}
		}
	}
	return false
}

func sameDisk(a, b *corev1.Volume) bool {
	switch {
	case a.GCEPersistentDisk != nil && b.GCEPersistentDisk != nil:
		x, y := a.GCEPersistentDisk, b.GCEPersistentDisk
		return x.PDName == y.PDName && !(x.ReadOnly && y.ReadOnly)
	case a.AWSElasticBlockStore != nil && b.AWSElasticBlockStore != nil:
		return a.AWSElasticBlockStore.VolumeID == b.AWSElasticBlockStore.VolumeID
	case a.ISCSI != nil && b.ISCSI != nil:
		return a.ISCSI.IQN == b.ISCSI.IQN && !(a.ISCSI.ReadOnly && b.ISCSI.ReadOnly)
	case a.RBD != nil && b.RBD != nil:
		x, y := a.RBD, b.RBD
		return x.RBDPool == y.RBDPool && x.RBDImage == y.RBDImage && !(x.ReadOnly && y.ReadOnly) &&
			sets.New(x.CephMonitors...).HasAny(y.CephMonitors...)
	}
	return false
}
