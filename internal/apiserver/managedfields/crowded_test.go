// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/mortise-dev/mortise/resource"
)

// podWith returns a pod with a number of annotations.
func podWith(n int) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Annotations: map[string]string{}}}
	for i := range n {
		p.Annotations[fmt.Sprint(i)] = ""
	}
	return p
}

// TestCrowdedObjects checks that the fields of very large objects are not tracked, and that tracking resumes when the
// object becomes smaller.
func TestCrowdedObjects(t *testing.T) {
	m := New(nil)
	update := func(live, obj *corev1.Pod) int {
		t.Helper()
		obj.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "before", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1",
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`)}}
		done, err := m.Update(pods(), "v1", "", live, obj, "m")
		if err != nil {
			t.Fatal(err)
		}
		return len(done.GetManagedFields())
	}
	small, large, larger := podWith(1), podWith(maxMembers), podWith(maxMembers+1)
	if update(small, larger.DeepCopy()) != 0 {
		t.Error("an object that becomes too large has managed fields")
	}
	if update(larger, small.DeepCopy()) != 0 {
		t.Error("an object that was too large has managed fields")
	}
	if update(small, large.DeepCopy()) == 0 || update(small, podWith(2)) == 0 {
		t.Error("an object that is not too large has no managed fields")
	}
	config := func(n int) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "p"}}}
		annotations := map[string]string{}
		for i := range n {
			annotations[fmt.Sprint(i)] = ""
		}
		u.SetAnnotations(annotations)
		return u
	}
	for name, c := range map[string]struct {
		live *corev1.Pod
		n    int
	}{"configuration": {small, maxMembers + 1}, "object": {larger, 1}} {
		if _, err := m.Apply(pods(), "v1", "", c.live, Configuration{config(c.n), "m", true}); !apierrors.IsRequestEntityTooLargeError(err) {
			t.Errorf("a large %s is applied: %v", name, err)
		}
	}
	if _, err := m.Apply(pods(), "v1", "", small, Configuration{config(3), "m", true}); err != nil {
		t.Errorf("a small configuration: %v", err)
	}
}

// TestCrowded checks that large maps and lists are found at any depth.
func TestCrowded(t *testing.T) {
	const n = maxMembers + 1
	many, keys := make([]any, n), map[string][]byte{}
	for i := range n {
		keys[fmt.Sprint(i)] = nil
	}
	for name, c := range map[string]struct {
		obj  resource.Object
		want bool
	}{
		"containers":        {&corev1.Pod{Spec: corev1.PodSpec{Containers: make([]corev1.Container, n)}}, true},
		"arguments":         {&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{}, {Args: make([]string, n)}}}}, true},
		"as many as may be": {&corev1.Pod{Spec: corev1.PodSpec{Containers: make([]corev1.Container, maxMembers)}}, false},
		"bytes":             {&corev1.Secret{Data: map[string][]byte{"a": make([]byte, n)}}, false},
		"keys":              {&corev1.Secret{Data: keys}, true},
		"a list in JSON":    {&unstructured.Unstructured{Object: map[string]any{"spec": []any{1, map[string]any{"a": many}}}}, true},
		"less in JSON":      {&unstructured.Unstructured{Object: map[string]any{"spec": many[1:]}}, false},
		"names of fields": {&corev1.Pod{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{},
			{FieldsV1: metav1.NewFieldsV1("{" + strings.Repeat(`"f:a":{},`, 2*n) + `"f:b":{}}`)}}}}, true},
		"nothing": {&corev1.Pod{}, false},
	} {
		if got := crowded(c.obj); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
