// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/resource"
)

// TestForbidden checks how errors name the object.
func TestForbidden(t *testing.T) {
	named := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "inside", GenerateName: "prefix-"}}
	generated := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "prefix-"}}
	for _, c := range []struct {
		name   string
		object resource.Object
		want   string
	}{
		{"path", named, `pods "path" is forbidden: no`},
		{"", named, `pods "inside" is forbidden: no`},
		{"", generated, `pods "prefix-" is forbidden: no`},
		{"", &corev1.Pod{}, `pods "Unknown" is forbidden: no`},
		{"", nil, `pods "Unknown" is forbidden: no`},
	} {
		a := &Attributes{Descriptor: &resource.Descriptor{Resource: "pods"}, Name: c.name, Object: c.object}
		err := Forbidden(a, errors.New("no"))
		if !apierrors.IsForbidden(err) || err.Error() != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
		if again := Forbidden(a, err); again != err {
			t.Errorf("a 403 became another: %v", again)
		}
	}
}

// TestIs checks that group, resource and subresource must match.
func TestIs(t *testing.T) {
	for _, c := range []struct {
		group, name, subresource string
		want                     bool
	}{
		{"apps", "deployments", "scale", true},
		{"apps", "deployments", "", false},
		{"apps", "replicasets", "scale", false},
		{"extensions", "deployments", "scale", false},
	} {
		a := &Attributes{Descriptor: &resource.Descriptor{Group: "apps", Resource: "deployments"}, Subresource: "scale"}
		if got := a.Is(c.group, c.name, c.subresource); got != c.want {
			t.Errorf("it is %s/%s/%s: %v", c.group, c.name, c.subresource, got)
		}
	}
}

// TestObjectsOf checks the typed objects, and whether the new one has the type.
func TestObjectsOf(t *testing.T) {
	pod, was, other := &corev1.Pod{}, &corev1.Pod{}, &corev1.ConfigMap{}
	for _, c := range []struct {
		object, old      resource.Object
		wantPod, wantOld *corev1.Pod
		wantOK           bool
	}{
		{pod, was, pod, was, true},
		{pod, nil, pod, nil, true},
		{pod, other, pod, nil, true},
		{other, was, nil, was, false},
		{nil, was, nil, was, false},
	} {
		got, old, ok := ObjectsOf[*corev1.Pod](&Attributes{Object: c.object, Old: c.old})
		if got != c.wantPod || old != c.wantOld || ok != c.wantOK {
			t.Errorf("of %T and %T: %p, %p, %v", c.object, c.old, got, old, ok)
		}
	}
}
