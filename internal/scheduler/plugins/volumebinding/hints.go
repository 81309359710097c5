// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/claims"
)

// EventsToRegister registers all that volumes depend on: classes, claims, volumes, nodes, drivers and their capacity.
func (*plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.StorageClass, ActionType: fwk.Add | fwk.Update}, QueueingHintFn: afterClass},
		{Event: fwk.ClusterEvent{Resource: fwk.PersistentVolumeClaim, ActionType: fwk.Add | fwk.Update}, QueueingHintFn: claims.Changed},
		{Event: fwk.ClusterEvent{Resource: fwk.PersistentVolume, ActionType: fwk.Add | fwk.Update}},
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeLabel}},
		{Event: fwk.ClusterEvent{Resource: fwk.CSINode, ActionType: fwk.Add | fwk.Update}, QueueingHintFn: afterCSINode},
		{Event: fwk.ClusterEvent{Resource: fwk.CSIDriver, ActionType: fwk.Update}, QueueingHintFn: afterDriver},
		{Event: fwk.ClusterEvent{Resource: fwk.CSIStorageCapacity, ActionType: fwk.Add | fwk.Update}, QueueingHintFn: afterCapacity},
	}, nil
}

func hint(may bool) (fwk.QueueingHint, error) {
	if may {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

func afterClass(_ klog.Logger, _ *corev1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	old, ok := oldObj.(*storagev1.StorageClass)
	class, ok2 := newObj.(*storagev1.StorageClass)
	return hint(!ok || !ok2 || !equality.Semantic.DeepEqual(old.AllowedTopologies, class.AllowedTopologies))
}

func afterCSINode(_ klog.Logger, _ *corev1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	old, ok := oldObj.(*storagev1.CSINode)
	node, ok2 := newObj.(*storagev1.CSINode)
	return hint(!ok || !ok2 || old.Annotations[corev1.MigratedPluginsAnnotationKey] != node.Annotations[corev1.MigratedPluginsAnnotationKey])
}

// afterDriver queues the pod if a driver no longer reports capacity, which is then not checked.
func afterDriver(_ klog.Logger, pod *corev1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	old, ok := oldObj.(*storagev1.CSIDriver)
	driver, ok2 := newObj.(*storagev1.CSIDriver)
	if !ok || !ok2 {
		return fwk.Queue, nil
	}
	tells := func(d *storagev1.CSIDriver) bool { return d.Spec.StorageCapacity != nil && *d.Spec.StorageCapacity }
	uses := slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.CSI != nil && v.CSI.Driver == driver.Name
	})
	return hint(uses && tells(old) && !tells(driver))
}

func afterCapacity(_ klog.Logger, _ *corev1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	old, ok := oldObj.(*storagev1.CSIStorageCapacity)
	now, ok2 := newObj.(*storagev1.CSIStorageCapacity)
	if !ok || !ok2 {
		return fwk.Queue, nil
	}
	was, is := largest(old), largest(now)
	return hint(is != nil && (was == nil || is.Cmp(*was) > 0))
}
