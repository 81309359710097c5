// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/mortise-dev/mortise/internal/agent/podfit"
)

// room counts the requests of the pods on a node. A node is the last guard against pods that do not fit: two schedulers may have filled
// it at the same time.
type room struct {
	mu   sync.Mutex
	pods map[types.UID]corev1.ResourceList
	used podfit.Requested
}

// take counts the pod on a node with these allocatable resources, or rejects it as a kubelet does. It never rejects a pod that it has
// counted before, or one that started before the node was restarted.
func (r *room) take(pod *corev1.Pod, allocatable corev1.ResourceList) *podfit.Rejection {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, counted := r.pods[pod.UID]; counted {
		return nil
	}
	if pod.Status.StartTime == nil {
		if reject := r.used.Reject(pod, allocatable); reject != nil {
			return reject
		}
	}
	if r.pods == nil {
		r.pods = map[types.UID]corev1.ResourceList{}
	}
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	r.pods[pod.UID] = requests
	r.used.Add(requests)
	return nil
}

// release removes a pod from the count.
func (r *room) release(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if requests, counted := r.pods[uid]; counted {
		delete(r.pods, uid)
		r.used.Remove(requests)
	}
}
