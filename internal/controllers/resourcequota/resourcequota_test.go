// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resourcequota

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	k8stesting "k8s.io/client-go/testing"
	testclock "k8s.io/utils/clock/testing"
)

// TestChargedWhileCounted: of two config maps one has gone, and while the rest is counted a new one is charged and made. The
// count comes to two, as the quota said before; it says three now, so the count has to be made again.
func TestChargedWhileCounted(t *testing.T) {
	limits := corev1.ResourceList{"count/configmaps": resource.MustParse("4")}
	now := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "limits", Namespace: "default", ResourceVersion: "5"},
		Spec:       corev1.ResourceQuotaSpec{Hard: limits},
		Status:     corev1.ResourceQuotaStatus{Hard: limits, Used: corev1.ResourceList{"count/configmaps": resource.MustParse("2")}},
	}
	known := now.DeepCopy()

	client := fake.NewClientset()
	client.PrependReactor("update", "resourcequotas", func(action k8stesting.Action) (bool, runtime.Object, error) {
		q := action.(k8stesting.UpdateAction).GetObject().(*corev1.ResourceQuota)
		if q.ResourceVersion != now.ResourceVersion {
			return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "resourcequotas"}, q.Name, nil)
		}
		return true, q, nil
	})
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	objects := metadatafake.NewSimpleMetadataClient(scheme)
	objects.PrependReactor("list", "configmaps", func(k8stesting.Action) (bool, runtime.Object, error) {
		now.ResourceVersion, now.Status.Used = "6", corev1.ResourceList{"count/configmaps": resource.MustParse("3")}
		return true, &metav1.List{Items: []runtime.RawExtension{
			{Object: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "stays"}}},
			{Object: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "new"}}},
		}}, nil
	})

	c := &controller{client: client, counter: &counter{client: client, metadata: objects,
		clock: testclock.NewFakePassiveClock(metav1.Now().Time)}}
	maps := corev1.SchemeGroupVersion.WithResource("configmaps")
	served := map[schema.GroupResource]schema.GroupVersionResource{maps.GroupResource(): maps}
	if err := c.count(t.Context(), known, served); !apierrors.IsConflict(err) {
		t.Errorf("count says %v, want a conflict", err)
	}
	if err := c.count(t.Context(), now.DeepCopy(), served); err != nil {
		t.Errorf("the next count says %v", err)
	}
}
