// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package namespace

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

func TestConditions(t *testing.T) {
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	later := metav1.NewTime(now.Add(30 * time.Second))
	left := newRemains()
	left.count(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, []metav1.PartialObjectMetadata{
		{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{"example.com/hold"}, DeletionTimestamp: &later}}, {},
	}, now)
	left.discovery = &discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{{Group: "dead",
		Version: "v1"}: errors.New("no answer")}}
	texts := func(conditions []corev1.NamespaceCondition) map[string]string {
		m := map[string]string{}
		for _, c := range conditions {
			m[string(c.Type)] = string(c.Status) + " " + c.Reason + ": " + c.Message
		}
		return m
	}
	first := left.conditions(nil, now)
	want := map[string]string{
		"NamespaceDeletionDiscoveryFailure":           "True DiscoveryFailed: Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: dead/v1: no answer",
		"NamespaceDeletionGroupVersionParsingFailure": "False ParsedGroupVersions: All legacy kube types successfully parsed",
		"NamespaceDeletionContentFailure":             "False ContentDeleted: All content successfully deleted, may be waiting on finalization",
		"NamespaceContentRemaining":                   "True SomeResourcesRemain: Some resources are remaining: deployments.apps has 2 resource instances",
		"NamespaceFinalizersRemaining":                "True SomeFinalizersRemain: Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances",
	}
	if diff := cmp.Diff(want, texts(first)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if left.failure() == nil || left.objects() != 2 || left.pause() != 15*time.Second {
		t.Errorf("failure %v, %d objects, pause %v", left.failure(), left.objects(), left.pause())
	}
	// What did not change keeps its time, what did gets a new one.
	second := newRemains().conditions(first, now.Add(time.Hour))
	for i, c := range second {
		changed := c.Status != first[i].Status
		if moved := !c.LastTransitionTime.Equal(&first[i].LastTransitionTime); moved != changed {
			t.Errorf("%s: changed %v, time moved %v", c.Type, changed, moved)
		}
	}
}

// What nothing holds and is there all the same is said to be unexpected; pods are once their grace is over.
func TestUnexpected(t *testing.T) {
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	things := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "things"}
	for name, c := range map[string]struct {
		items []metav1.PartialObjectMetadata
		lasts bool
		want  string
	}{
		"nothing": {want: "All content successfully deleted, may be waiting on finalization"},
		"held": {items: []metav1.PartialObjectMetadata{{}, {ObjectMeta: metav1.ObjectMeta{Finalizers: []string{"a/b"}}}},
			want: "All content successfully deleted, may be waiting on finalization"},
		"in grace": {items: []metav1.PartialObjectMetadata{{}}, lasts: true,
			want: "All content successfully deleted, may be waiting on finalization"},
		"for ever": {items: []metav1.PartialObjectMetadata{{}},
			want: "Failed to delete all resource types, 1 remaining: unexpected items still remain in namespace: ns for gvr: example.com/v1, Resource=things"},
		"once more": {items: []metav1.PartialObjectMetadata{{}, {}},
			want: "Failed to delete all resource types, 1 remaining: unexpected items still remain in namespace: ns for gvr: example.com/v1, Resource=things"},
	} {
		part := newRemains()
		part.count(things, c.items, now)
		part.overdue("ns", things, c.lasts)
		left := newRemains()
		left.add(part)
		for _, condition := range left.conditions(nil, now) {
			if condition.Type == corev1.NamespaceDeletionContentFailure && condition.Message != c.want {
				t.Errorf("%s: %s", name, condition.Message)
			}
		}
	}
}
