// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodevolumelimits

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/claims"
)

// EventsToRegister registers nodes that report drivers or higher limits, the deletion of pods and attachments, and the pod's claims.
func (p *plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.CSINode, ActionType: fwk.Add}},
		{Event: fwk.ClusterEvent{Resource: fwk.CSINode, ActionType: fwk.Update}, QueueingHintFn: afterNode},
		{Event: fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}, QueueingHintFn: p.afterPod},
		{Event: fwk.ClusterEvent{Resource: fwk.PersistentVolumeClaim, ActionType: fwk.Add}, QueueingHintFn: claims.Changed},
		{Event: fwk.ClusterEvent{Resource: fwk.VolumeAttachment, ActionType: fwk.Delete}, QueueingHintFn: p.afterAttachment},
	}, nil
}

func afterNode(_ klog.Logger, _ *corev1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	old, ok := oldObj.(*storagev1.CSINode)
	node, ok2 := newObj.(*storagev1.CSINode)
	if !ok || !ok2 {
		return fwk.Queue, nil
	}
	before := limits(old)
	for driver, most := range limits(node) {
		if most > before[driver] {
			return fwk.Queue, nil
		}
	}
	return fwk.QueueSkip, nil
}

func (p *plugin) afterPod(_ klog.Logger, _ *corev1.Pod, oldObj, _ any) (fwk.QueueingHint, error) {
	gone, ok := oldObj.(*corev1.Pod)
	if ok && (gone.Spec.NodeName == "" && gone.Status.NominatedNodeName == "" || !slices.ContainsFunc(gone.Spec.Volumes, p.counts)) {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}

func (p *plugin) afterAttachment(_ klog.Logger, pod *corev1.Pod, oldObj, _ any) (fwk.QueueingHint, error) {
	gone, ok := oldObj.(*storagev1.VolumeAttachment)
	if !ok {
		return fwk.Queue, nil
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
			return fwk.Queue, nil
		}
		if !p.migrated.IsInlineMigratable(v) {
			continue
		}
		pv, err := p.migrated.TranslateInTreeInlineVolumeToCSI(klog.Logger{}, v, pod.Namespace)
		if err != nil || pv == nil || pv.Spec.CSI != nil && pv.Spec.CSI.Driver == gone.Spec.Attacher {
			return fwk.Queue, err
		}
	}
	return fwk.QueueSkip, nil
}
