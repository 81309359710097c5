// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resourcequota

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/resource"
)

var (
	podResource = schema.GroupResource{Resource: "pods"}
	classes     = schema.GroupResource{Group: "resource.k8s.io", Resource: "deviceclasses"}
	claims      = schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}
)

// claimOfDevices returns a claim that requests a number of devices of the class gpu.
func claimOfDevices(name string, count int64) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
	c.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{
		DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count,
	}}}
	return c
}

// madeFor returns a claim for a pod's extended resources.
func madeFor(c *resourcev1.ResourceClaim, pod *corev1.Pod) *resourcev1.ResourceClaim {
	c.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
	c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))}
	return c
}

// TestDevices checks that claims of devices are charged according to the stored device classes, pods and claims.
func TestDevices(t *testing.T) {
	const extended = "requests.example.com/gpu"
	name := "example.com/gpu"
	gpu := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}
	gpu.Spec.ExtendedResourceName = &name
	class := map[schema.GroupResource][]resource.Object{classes: {gpu}}
	pod := podOf("p", "")
	pod.UID = types.UID("uid-p")
	pod.Spec.Containers[0].Resources.Requests = amounts(name, "1")
	replaced := pod.DeepCopy()
	replaced.UID = types.UID("uid-of-another")
	for _, c := range []struct {
		name   string
		others map[schema.GroupResource][]resource.Object
		claim  *resourcev1.ResourceClaim
		want   string
		left   string
	}{
		{name: "a class that nobody has made", claim: claimOfDevices("c", 2), left: extended + "=0"},
		{name: "fits", others: class, claim: claimOfDevices("c", 1), left: extended + "=1"},
		{
			name: "too many", others: class, claim: claimOfDevices("c", 2), left: extended + "=0",
			want: `resourceclaims.resource.k8s.io "c" is forbidden: exceeded quota: q, requested: requests.example.com/gpu=2, ` +
				"used: requests.example.com/gpu=0, limited: requests.example.com/gpu=1",
		},
		{
			name:   "the pod has been charged for one of two",
			others: map[schema.GroupResource][]resource.Object{classes: {gpu}, podResource: {pod}},
			claim:  madeFor(claimOfDevices("c", 2), pod), left: extended + "=1",
		},
		{
			name: "another claim has that already",
			others: map[schema.GroupResource][]resource.Object{
				classes: {gpu}, podResource: {pod}, claims: {madeFor(claimOfDevices("a", 1), pod)},
			},
			claim: madeFor(claimOfDevices("c", 1), pod), left: extended + "=1",
		},
		{
			name:   "the pod is another one",
			others: map[schema.GroupResource][]resource.Object{classes: {gpu}, podResource: {replaced}},
			claim:  madeFor(claimOfDevices("c", 1), pod), left: extended + "=1",
		},
		{
			name:   "the pod is gone",
			others: class,
			claim:  madeFor(claimOfDevices("c", 1), pod), left: extended + "=1",
		},
		{
			name:   "what is called a pod is none",
			others: map[schema.GroupResource][]resource.Object{classes: {gpu}, podResource: {&corev1.ConfigMap{ObjectMeta: pod.ObjectMeta}}},
			claim:  madeFor(claimOfDevices("c", 1), pod), left: extended + "=0",
			want: "get pod team/p: pod team/p is a *v1.ConfigMap",
		},
	} {
		p, b := setup(t, "", newQuota("q", amounts(extended, "1"), amounts(extended, "0")))
		b.others = c.others
		got := ""
		if err := p.Validate(t.Context(), b, request("resource.k8s.io", "resourceclaims", c.claim)); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
		if left := b.usedText("q"); left != c.left {
			t.Errorf("%s: used %s, want %s", c.name, left, c.left)
		}
	}
}

// TestDevicesUnreadable checks that a claim is rejected if device classes cannot be read. A server without that kind
// has none.
func TestDevicesUnreadable(t *testing.T) {
	for _, c := range []struct {
		blind error
		want  string
	}{{errors.New("disk full"), "list device classes: disk full"}, {apierrors.NewNotFound(classes, ""), ""}} {
		p, b := setup(t, "", newQuota("q", amounts("requests.example.com/gpu", "1"), amounts("requests.example.com/gpu", "0")))
		b.blind = c.blind
		got := ""
		if err := p.Validate(t.Context(), b, request("resource.k8s.io", "resourceclaims", claimOfDevices("c", 2))); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%v: got %q, want %q", c.blind, got, c.want)
		}
	}
	b := &backend{blind: errors.New("disk full")}
	if pod, err := (cluster{b: b}).Pod(t.Context(), "team", "p"); pod != nil || !errors.Is(err, b.blind) {
		t.Errorf("a pod that cannot be read: %v, %v", pod, err)
	}
}
