// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package noderesources

import (
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/nodeinfo"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

// leaves reports whether DynamicResources handles the resource: the node has none, and a DeviceClass backs it (KEP-5004).
func (f fit) leaves(name corev1.ResourceName, has fwk.Resource) bool {
	return f.devices != nil && nodeinfo.IsExtended(name) && has.GetScalarResources()[name] == 0 &&
		f.devices.DeviceClassResolver().GetDeviceClass(name) != nil
}

// fitByDevices is NodeResourcesFit for scored resources that a DeviceClass may back.
type fitByDevices struct{ fit }

// Fleeting implements [profile.Fleeting].
func (f fitByDevices) Fleeting(state fwk.CycleState, pod *corev1.Pod) bool {
	return f.stock.concerns(readRequest(state, pod))
}

// balancedByDevices is NodeResourcesBalancedAllocation for such resources.
type balancedByDevices struct{ balanced }

// Fleeting implements [profile.Fleeting].
func (b balancedByDevices) Fleeting(state fwk.CycleState, pod *corev1.Pod) bool {
	return b.stock.concerns(readRequest(state, pod))
}

var _, _ profile.Fleeting = fitByDevices{}, balancedByDevices{}

// afterClass queues the pod if a DeviceClass has begun to back a resource that the pod requests.
func afterClass(_ klog.Logger, pod *corev1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	class, ok := newObj.(*resourcev1.DeviceClass)
	if !ok {
		return fwk.Queue, nil
	}
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	asks := func(name string) bool {
		_, ok := requests[corev1.ResourceName(name)]
		return ok
	}
	stands := ""
	if class.Spec.ExtendedResourceName != nil {
		stands = *class.Spec.ExtendedResourceName
	}
	if old, ok := oldObj.(*resourcev1.DeviceClass); ok && old != nil {
		if was := old.Spec.ExtendedResourceName; was != nil && *was == stands || was == nil && stands == "" {
			return fwk.QueueSkip, nil
		}
	} else if asks(resourcev1.ResourceDeviceClassPrefix + class.Name) {
		return fwk.Queue, nil
	}
	if stands != "" && asks(stands) {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}
