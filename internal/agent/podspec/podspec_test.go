// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podspec_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

func pod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u", ResourceVersion: "7"},
		Spec: corev1.PodSpec{
			Containers:     []corev1.Container{{Name: "c"}},
			InitContainers: []corev1.Container{{Name: "i"}},
			EphemeralContainers: []corev1.EphemeralContainer{
				{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e"}},
			},
		},
	}
}

func TestEventsNameTheContainer(t *testing.T) {
	p := pod()
	if podspec.Describe(p) != "p_ns(u)" || podspec.Name(p).String() != "ns/p" {
		t.Errorf("%s, %s", podspec.Describe(p), podspec.Name(p))
	}
	for name, path := range map[string]string{"c": "spec.containers{c}", "i": "spec.initContainers{i}", "e": "spec.ephemeralContainers{e}"} {
		c := podspec.Container(p, name)
		if c == nil || c.Name != name {
			t.Fatalf("container %s is %+v", name, c)
		}
		want := corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "ns", Name: "p", UID: "u", ResourceVersion: "7", FieldPath: path}
		if got := podspec.ContainerReference(p, c); *got != want {
			t.Errorf("%+v, want %+v", *got, want)
		}
	}
	if podspec.Container(p, "d") != nil {
		t.Error("a container that the pod does not have")
	}
	for _, c := range []*corev1.Container{nil, {}} {
		if got := podspec.ContainerReference(p, c); got.FieldPath != "" || got.Name != "p" {
			t.Errorf("the pod itself: %+v", got)
		}
	}
}

func TestStaticPodsAndTheirMirrors(t *testing.T) {
	for source, want := range map[string]bool{"": false, "api": false, "file": true, "http": true} {
		p := pod()
		p.Annotations = map[string]string{podspec.ConfigSource: source}
		if podspec.IsStatic(p) != want || podspec.IsMirror(p) {
			t.Errorf("source %q: static %t, mirror %t", source, podspec.IsStatic(p), podspec.IsMirror(p))
		}
		p.Annotations[corev1.MirrorPodAnnotationKey] = "hash"
		if podspec.IsStatic(p) || !podspec.IsMirror(p) {
			t.Errorf("mirror of source %q: static %t, mirror %t", source, podspec.IsStatic(p), podspec.IsMirror(p))
		}
	}
}
