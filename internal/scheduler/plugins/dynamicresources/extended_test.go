// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dynamicresources

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	fwk "k8s.io/kube-scheduler/framework"
)

// TestRequestsForExtendedResources: what containers ask for becomes requests of one claim, which init containers share where they run at
// different times.
func TestRequestsForExtendedResources(t *testing.T) {
	const gpu = corev1.ResourceName("example.com/gpu")
	always := corev1.ContainerRestartPolicyAlways
	c := func(name string, n int64) corev1.Container {
		out := corev1.Container{Name: name}
		if n > 0 {
			out.Resources.Requests = corev1.ResourceList{gpu: *resource.NewQuantity(n, resource.DecimalSI), "cpu": resource.MustParse("1")}
		}
		return out
	}
	sidecar := func(name string, n int64) corev1.Container {
		out := c(name, n)
		out.RestartPolicy = &always
		return out
	}
	for _, x := range []struct {
		what        string
		init, after []corev1.Container
		want        []string
	}{
		{"one", nil, []corev1.Container{c("a", 2)}, []string{"container-0-request-1: 2", "a: container-0-request-1"}},
		{"two, and one without", nil, []corev1.Container{c("a", 2), c("b", 0), c("d", 1)}, []string{
			"container-0-request-1: 2", "container-2-request-1: 1", "a: container-0-request-1", "d: container-2-request-1",
		}},
		{"an init container uses what comes later", []corev1.Container{c("i", 2)}, []corev1.Container{c("a", 1), c("b", 3)}, []string{
			"container-1-request-1: 1", "container-2-request-1: 3", "a: container-1-request-1", "b: container-2-request-1",
			"i: container-1-request-1", "i: container-2-request-1",
		}},
		{"an init container needs more than what comes later", []corev1.Container{c("i", 5)}, []corev1.Container{c("a", 1)}, []string{
			"container-0-request-1: 4", "container-1-request-1: 1", "a: container-1-request-1", "i: container-1-request-1",
			"i: container-0-request-1",
		}},
		{"of two init containers the one that needs more counts for both", []corev1.Container{c("i", 2), c("j", 4)},
			[]corev1.Container{c("a", 1)}, []string{
				"container-1-request-1: 3", "container-2-request-1: 1", "a: container-2-request-1",
				"i: container-2-request-1", "i: container-1-request-1", "j: container-2-request-1", "j: container-1-request-1",
			}},
		{"a sidecar before it is in use", []corev1.Container{sidecar("s", 1), c("i", 1)}, []corev1.Container{c("a", 0)}, []string{
			"container-1-request-1: 1", "container-0-request-1: 1", "s: container-0-request-1", "i: container-1-request-1",
		}},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{InitContainers: x.init, Containers: x.after}}
		got := requestsFor(pod, gpu, "class")
		var text []string
		for _, r := range got.requests {
			if r.Exactly.DeviceClassName != "class" {
				t.Errorf("%s: class %s", x.what, r.Exactly.DeviceClassName)
			}
			text = append(text, fmt.Sprintf("%s: %d", r.Name, r.Exactly.Count))
		}
		for _, m := range got.mappings {
			text = append(text, m.ContainerName+": "+m.RequestName)
		}
		if d := cmp.Diff(x.want, text); d != "" {
			t.Errorf("%s (-want +got):\n%s", x.what, d)
		}
	}
}

// backing is a manager with a class behind one extended resource.
type backing struct {
	fwk.SharedDRAManager
	name corev1.ResourceName
}

func (b backing) DeviceClassResolver() fwk.DeviceClassResolver { return b }

func (b backing) GetDeviceClass(name corev1.ResourceName) *resourcev1.DeviceClass {
	if name != b.name {
		return nil
	}
	return &resourcev1.DeviceClass{}
}

// TestWhoIsSigned: pods that need devices are not alike: the one before may have had the last.
func TestWhoIsSigned(t *testing.T) {
	asks := func(name corev1.ResourceName, n string) corev1.PodSpec {
		return corev1.PodSpec{Containers: []corev1.Container{
			{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{name: resource.MustParse(n)}}}}}
	}
	for _, x := range []struct {
		what string
		spec corev1.PodSpec
		want string
	}{
		{"plain", asks("cpu", "1"), ""},
		{"a claim", corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "c"}}}, "pods with dra resource claims are not signable"},
		{"a class stands behind it", asks("example.com/gpu", "1"), "signature disabled when dra extended resources are used in the cluster"},
		{"but it asks for none", asks("example.com/gpu", "0"), ""},
		{"no class does", asks("example.com/other", "1"), ""},
	} {
		_, st := (&plugin{devices: backing{name: "example.com/gpu"}}).SignPod(t.Context(), &corev1.Pod{Spec: x.spec})
		if st.Message() != x.want {
			t.Errorf("%s: %q, want %q", x.what, st.Message(), x.want)
		}
	}
}
