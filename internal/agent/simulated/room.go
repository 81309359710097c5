// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/mortise-dev/mortise/internal/agent/allocatable"
)

// room is what the pods on a node take up. A node is the last guard against pods that do not fit: schedulers that know
// nothing of each other may have filled it twice over.
type room struct {
	mu   sync.Mutex
	pods map[types.UID]corev1.ResourceList
}

// counted are the resources that a pod can be refused for.
var counted = [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}

// take takes up what the pod asks for of a node of that size; else it says why not, in the kubelet's words. A pod that is
// there already stays; one that had begun before the node was restarted is taken on in any case.
func (r *room) take(pod *corev1.Pod, size corev1.ResourceList) (reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, there := r.pods[pod.UID]; there {
		return "", ""
	}
	asked := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	if pod.Status.StartTime == nil {
		if reason, message = r.refuse(asked, size); reason != "" {
			return reason, message
		}
	}
	if r.pods == nil {
		r.pods = map[types.UID]corev1.ResourceList{}
	}
	r.pods[pod.UID] = asked
	return "", ""
}

func (r *room) refuse(asked, size corev1.ResourceList) (reason, message string) {
	const format = "Pod was rejected: Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d" // upstream's words
	if limit, ok := size[corev1.ResourcePods]; ok && int64(len(r.pods)) >= limit.Value() {
		return "OutOfpods", fmt.Sprintf(format, corev1.ResourcePods, 1, len(r.pods), limit.Value())
	}
	for _, name := range counted {
		want, has := allocatable.Amount(asked, name), allocatable.Amount(size, name)
		used := int64(0)
		for _, other := range r.pods {
			used += allocatable.Amount(other, name)
		}
		if want > 0 && used+want > has {
			return "OutOf" + string(name), fmt.Sprintf(format, name, want, used, has)
		}
	}
	return "", ""
}

// release gives back what a pod took up.
func (r *room) release(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pods, uid)
}
