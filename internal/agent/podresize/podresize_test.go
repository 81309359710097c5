// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podresize

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func asking(cpu string) corev1.ResourceRequirements {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	return corev1.ResourceRequirements{Requests: list, Limits: list}
}

// sharing are resources of a pod as a whole.
func sharing(request, limit string) *corev1.ResourceRequirements {
	return &corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(request)},
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(limit)},
	}
}

// TestWhatAPodHasAsAWhole is what the status says of pods with resources of their own, which is what bounds their cgroups.
func TestWhatAPodHasAsAWhole(t *testing.T) {
	for name, c := range map[string]struct {
		own      *corev1.ResourceRequirements
		one, two corev1.ResourceRequirements
		want     string // requests and limits of CPU
	}{
		"none of its own":        {nil, asking("1"), asking("2"), ""},
		"both its own":           {sharing("3", "4"), asking("1"), asking("2"), "3 4"},
		"its containers' limits": {&corev1.ResourceRequirements{Requests: sharing("5", "1").Requests}, asking("1"), asking("2"), "5 3"},
		"the limit of one container is none": {
			&corev1.ResourceRequirements{Requests: sharing("5", "1").Requests}, asking("1"), corev1.ResourceRequirements{}, "5 none",
		},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
		p.Spec.Resources, p.Spec.Containers[0].Resources = c.own, c.one
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "d", Resources: c.two})
		got := ""
		if e := effective(p); e != nil {
			got = e.Requests.Cpu().String() + " none"
			if limit, is := e.Limits[corev1.ResourceCPU]; is {
				got = e.Requests.Cpu().String() + " " + limit.String()
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
