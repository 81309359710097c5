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

// EventsToRegister registers nodes, claims that are added or lose their devices, the pod's claims, classes and slices.
func (p *plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeLabel | fwk.UpdateNodeAllocatable}},
		{Event: fwk.ClusterEvent{Resource: fwk.ResourceClaim, ActionType: fwk.Add | fwk.Update | fwk.Delete}, QueueingHintFn: p.afterClaim},
		{Event: fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.UpdatePodGeneratedResourceClaim}, QueueingHintFn: p.afterPod},
		{Event: fwk.ClusterEvent{Resource: fwk.DeviceClass, ActionType: fwk.Add | fwk.Update}},
		{Event: fwk.ClusterEvent{Resource: fwk.ResourceSlice, ActionType: fwk.Add | fwk.Update}},
	}, nil
}

// afterClaim returns whether a change of a claim may help. Freed devices may help every pod whose own claims exist; other changes help only
// the pods that use the claim.
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
		return fwk.QueueSkip, nil // nolint:nilerr // a claim is still missing: the pod continues to wait
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

// afterPod queues the pod if its status names its claims by now.
func (p *plugin) afterPod(_ klog.Logger, _ *corev1.Pod, _, newObj any) (fwk.QueueingHint, error) {
	if pod, ok := newObj.(*corev1.Pod); ok {
		if _, err := p.claimsOf(pod); err != nil {
			return fwk.QueueSkip, nil // nolint:nilerr // a claim is still missing: the pod continues to wait
		}
	}
	return fwk.Queue, nil
}
