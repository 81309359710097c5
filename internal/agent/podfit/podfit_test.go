// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podfit

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// What the scheduler allocates from claims is not the node's, whether a pod names the class's extended resource or the class itself.
func TestResourcesOfClaims(t *testing.T) {
	const own, class, unmapped = "example.com/gpu", "deviceclass.resource.kubernetes.io/gpu", "deviceclass.resource.kubernetes.io/nic"
	has := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10"), own: resource.MustParse("0")}
	for _, c := range []struct {
		asks   corev1.ResourceName
		reason string
	}{{own, ""}, {class, ""}, {unmapped, OutOf + unmapped}, {"example.com/absent", ""}} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{c.asks: resource.MustParse("1")},
		}}}}}
		mapped := []corev1.ContainerExtendedResourceRequest{
			{ContainerName: "c", ResourceName: own}, {ContainerName: "c", ResourceName: class}, {ContainerName: "d", ResourceName: unmapped},
		}
		pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{RequestMappings: mapped}
		got := ""
		if r := (&Requested{}).Reject(pod, has); r != nil {
			got = r.Reason
		}
		if got != c.reason {
			t.Errorf("%s: %q, want %q", c.asks, got, c.reason)
		}
	}
}
