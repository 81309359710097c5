// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package volumezone is the VolumeZone plug-in: a node must be in the zone and region of the pod's volumes, by their
// labels. Nodes without such labels fit all volumes.
package volumezone

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/claims"
)

// Name is the plug-in's name.
const Name = "VolumeZone"

const filterKey fwk.StateKey = "PreFilter" + Name

// places are the labels of zones and regions, deprecated names first, with their current names.
var places = [...]struct{ label, today string }{
	{corev1.LabelFailureDomainBetaZone, corev1.LabelTopologyZone},
	{corev1.LabelFailureDomainBetaRegion, corev1.LabelTopologyRegion},
	{corev1.LabelTopologyZone, corev1.LabelTopologyZone},
	{corev1.LabelTopologyRegion, corev1.LabelTopologyRegion},
}

// New returns the plug-in.
func New(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	f := h.SharedInformerFactory()
	return &plugin{
		volumes: f.Core().V1().PersistentVolumes().Lister(), claims: f.Core().V1().PersistentVolumeClaims().Lister(),
		classes: f.Storage().V1().StorageClasses().Lister(),
	}, nil
}

type plugin struct {
	claims.Signer

	volumes corelisters.PersistentVolumeLister
	claims  corelisters.PersistentVolumeClaimLister
	classes storagelisters.StorageClassLister
}

func (*plugin) Name() string { return Name }

// EventsToRegister registers classes that wait for the first consumer, nodes and their labels, the pod's claims, and volumes with other
// labels.
func (*plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.StorageClass, ActionType: fwk.Add}, QueueingHintFn: afterClass},
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeLabel}},
		{Event: fwk.ClusterEvent{Resource: fwk.PersistentVolumeClaim, ActionType: fwk.Add | fwk.Update}, QueueingHintFn: afterClaim},
		{Event: fwk.ClusterEvent{Resource: fwk.PersistentVolume, ActionType: fwk.Add | fwk.Update}, QueueingHintFn: afterVolume},
	}, nil
}

func afterClass(_ klog.Logger, _ *corev1.Pod, _, newObj any) (fwk.QueueingHint, error) {
	if class, ok := newObj.(*storagev1.StorageClass); ok && !waits(class) {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}

func afterClaim(_ klog.Logger, pod *corev1.Pod, _, newObj any) (fwk.QueueingHint, error) {
	claim, ok := newObj.(*corev1.PersistentVolumeClaim)
	if ok && (claim.Namespace != pod.Namespace || !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim.Name
	})) {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}

func afterVolume(_ klog.Logger, _ *corev1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	old, ok := oldObj.(*corev1.PersistentVolume)
	pv, ok2 := newObj.(*corev1.PersistentVolume)
	if ok && ok2 && slices.EqualFunc(tied(old), tied(pv),
		func(a, b tie) bool { return a.label == b.label && slices.Equal(a.values, b.values) }) {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}

func waits(class *storagev1.StorageClass) bool {
	return class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// tie is a topology requirement of a volume: the node's label must have one of the values.
type tie struct {
	label, today string
	values       []string
}

// tied returns the requirements in a volume's labels. A label with an empty value among its values has no effect.
func tied(pv *corev1.PersistentVolume) (ties []tie) {
	for _, p := range places {
		value, ok := pv.Labels[p.label]
		if !ok {
			continue
		}
		values := strings.Split(value, "__")
		for i, v := range values {
			values[i] = strings.TrimSpace(v)
		}
		if !slices.Contains(values, "") {
			slices.Sort(values)
			ties = append(ties, tie{p.label, p.today, values})
		}
	}
	return ties
}

type state struct{ ties []tie }

// Clone returns the state itself, which is immutable.
func (s *state) Clone() fwk.StateData { return s }

// PreFilter finds the topology requirements of the pod's volumes.
func (p *plugin) PreFilter(_ context.Context, cycle fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	var ties []tie
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		of, st := p.ofClaim(pod.Namespace, v.PersistentVolumeClaim.ClaimName)
		if !st.IsSuccess() {
			return nil, st
		}
		ties = append(ties, of...)
	}
	if len(ties) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	cycle.Write(filterKey, &state{ties})
	return nil, nil
}

func (p *plugin) ofClaim(namespace, name string) ([]tie, *fwk.Status) {
	if name == "" {
		return nil, never("PersistentVolumeClaim had no name")
	}
	claim, err := p.claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return nil, missing(err)
	}
	if claim.Spec.VolumeName != "" {
		pv, err := p.volumes.Get(claim.Spec.VolumeName)
		if err != nil {
			return nil, missing(err)
		}
		return tied(pv), nil
	}
	className := volume.GetPersistentVolumeClaimClass(claim)
	if className == "" {
		return nil, never("PersistentVolumeClaim had no pv name and storageClass name")
	}
	class, err := p.classes.Get(className)
	switch {
	case err != nil:
		return nil, missing(err)
	case class.VolumeBindingMode == nil:
		return nil, never(fmt.Sprintf("VolumeBindingMode not set for StorageClass %q", className))
	case !waits(class):
		return nil, never("PersistentVolume had no name")
	}
	return nil, nil
}

// never returns a rejection that no change of a node resolves; the messages are upstream's.
func never(why string) *fwk.Status { return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, why) }

func missing(err error) *fwk.Status {
	if apierrors.IsNotFound(err) {
		return never(err.Error())
	}
	return fwk.AsStatus(err)
}

// PreFilterExtensions returns nil: other pods have no effect.
func (*plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter rejects nodes in other zones and regions.
func (*plugin) Filter(_ context.Context, cycle fwk.CycleState, _ *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	data, err := cycle.Read(filterKey)
	if err != nil {
		return fwk.AsStatus(err)
	}
	s, ok := data.(*state)
	if !ok {
		return fwk.AsStatus(errors.New("not the state of " + Name))
	}
	labels := node.Node().Labels
	for _, p := range places {
		if _, ok := labels[p.label]; ok {
			return s.verdict(labels)
		}
	}
	return nil
}

func (s *state) verdict(labels map[string]string) *fwk.Status {
	for _, t := range s.ties {
		value, ok := labels[t.label]
		if !ok {
			value, ok = labels[t.today]
		}
		if !ok || !slices.Contains(t.values, value) {
			return never("node(s) had no available volume zone")
		}
	}
	return nil
}
