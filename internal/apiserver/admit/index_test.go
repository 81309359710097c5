// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

var quotas = schema.GroupResource{Resource: "resourcequotas"}

// shelf lists objects in order of arrival, or fails.
type shelf struct {
	objects []resource.Object
	err     error
}

func (s *shelf) List(context.Context, schema.GroupResource, string) ([]resource.Object, error) {
	return s.objects, s.err
}

func quota(namespace, name, version string) *corev1.ResourceQuota {
	return &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: version}}
}

// known returns the names and versions of the indexed objects in each namespace.
func known(x *Index[*corev1.ResourceQuota]) map[string][]string {
	out := map[string][]string{}
	for _, namespace := range []string{"a", "b"} {
		for _, q := range x.In(namespace) {
			out[namespace] = append(out[namespace], q.Name+"@"+q.ResourceVersion)
		}
	}
	return out
}

// TestIndexLoad checks that Load replaces the contents with the stored objects, sorted by name.
func TestIndexLoad(t *testing.T) {
	var x Index[*corev1.ResourceQuota]
	for _, c := range []struct {
		stored []resource.Object
		want   map[string][]string
	}{
		{nil, map[string][]string{}},
		{
			[]resource.Object{
				quota("a", "z", "1"), quota("b", "y", "2"), quota("a", "x", "3"),
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "c"}},
			},
			map[string][]string{"a": {"x@3", "z@1"}, "b": {"y@2"}},
		},
		{[]resource.Object{quota("b", "y", "4")}, map[string][]string{"b": {"y@4"}}},
	} {
		if err := x.Load(t.Context(), &shelf{objects: c.stored}, quotas); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(c.want, known(&x)); d != "" {
			t.Errorf("known (-want +got):\n%s", d)
		}
	}
}

// TestIndexApply checks that creates, updates and deletes are applied without changing lists that were returned before.
func TestIndexApply(t *testing.T) {
	var x Index[*corev1.ResourceQuota]
	apply := func(name string, obj resource.Object, want map[string][]string) {
		t.Helper()
		x.Apply(&feed.Change{Resource: quotas, Namespace: "a", Name: name, Object: obj})
		if d := cmp.Diff(want, known(&x)); d != "" {
			t.Errorf("known (-want +got):\n%s", d)
		}
	}
	apply("z", quota("a", "z", "1"), map[string][]string{"a": {"z@1"}})
	apply("x", quota("a", "x", "2"), map[string][]string{"a": {"x@2", "z@1"}})
	given := x.In("a")
	apply("x", quota("a", "x", "3"), map[string][]string{"a": {"x@3", "z@1"}})
	apply("x", nil, map[string][]string{"a": {"z@1"}})
	if given[0].ResourceVersion != "2" || given[1].Name != "z" {
		t.Errorf("a list that was handed out became %v", given)
	}
	apply("z", nil, map[string][]string{})
	if x.In("a") != nil {
		t.Error("an empty namespace is kept")
	}
}

// TestIndexFails checks that the index keeps its contents when the store fails, and returns the error.
func TestIndexFails(t *testing.T) {
	var x Index[*corev1.ResourceQuota]
	s := &shelf{objects: []resource.Object{quota("a", "z", "1")}}
	if err := x.Load(t.Context(), s, quotas); err != nil {
		t.Fatal(err)
	}
	s.objects, s.err = []resource.Object{quota("a", "z", "2")}, errors.New("disk full")
	if err := x.Load(t.Context(), s, quotas); !errors.Is(err, s.err) {
		t.Errorf("load: %v", err)
	}
	if d := cmp.Diff(map[string][]string{"a": {"z@1"}}, known(&x)); d != "" {
		t.Errorf("known (-want +got):\n%s", d)
	}
}
