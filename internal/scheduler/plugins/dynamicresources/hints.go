// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dynamicresources

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// EventsToRegister says that other nodes, claims that come or lose their devices, the pod's claims, classes and slices may help.
func (p *plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeLabel | fwk.UpdateNodeAllocatable}},
		{Event: fwk.ClusterEvent{Resource: fwk.ResourceClaim, ActionType: fwk.Add | fwk.Update | fwk.Delete}, QueueingHintFn: p.afterClaim},
		{Event: fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.UpdatePodGeneratedResourceClaim}, QueueingHintFn: p.afterPod},
		{Event: fwk.ClusterEvent{Resource: fwk.DeviceClass, ActionType: fwk.Add | fwk.Update}},
		{Event: fwk.ClusterEvent{Resource: fwk.ResourceSlice, ActionType: fwk.Add | fwk.Update}},
	}, nil
}

// afterClaim: devices that come free may help all pods, once their own claims are there; what else happens to a claim those that use it.
func (p *plugin) afterClaim(_ klog.Logger, pod *corev1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	old, _ := oldObj.(*resourcev1.ResourceClaim)
	claim, _ := newObj.(*resourcev1.ResourceClaim)
	if claim == nil {
		if old != nil && old.Status.Allocation == nil {
			return fwk.QueueSkip, nil
		}
		return fwk.Queue, nil
	}
	claims, err := p.claimsOf(pod)
	if err != nil {
		return fwk.QueueSkip, nil //nolint:nilerr // a claim is still missing: the pod goes on waiting
	}
	if old != nil && old.Status.Allocation != nil && claim.Status.Allocation == nil {
		return fwk.Queue, nil
	}
	for _, own := range claims {
		if own.UID == claim.UID {
			if old != nil && equality.Semantic.DeepEqual(&old.Status, &claim.Status) {
				return fwk.QueueSkip, nil
			}
			return fwk.Queue, nil
		}
	}
	return fwk.QueueSkip, nil
}

// afterPod: the pod's status may name its claims by now.
func (p *plugin) afterPod(_ klog.Logger, _ *corev1.Pod, _, newObj any) (fwk.QueueingHint, error) {
	if pod, ok := newObj.(*corev1.Pod); ok {
		if _, err := p.claimsOf(pod); err != nil {
			return fwk.QueueSkip, nil //nolint:nilerr // a claim is still missing: the pod goes on waiting
		}
	}
	return fwk.Queue, nil
}
