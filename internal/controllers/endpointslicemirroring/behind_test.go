// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package endpointslicemirroring

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/endpointslice/util"
)

// TestBehind: what changes while the cache of slices is behind the last write is not lost. The event of that write wakes nobody, so
// the sync has to fail, to be tried again.
func TestBehind(t *testing.T) {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "s"}}
	from := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "s"}}
	cached := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "s-1", UID: "1", Generation: 1,
		Labels: map[string]string{
			discoveryv1.LabelServiceName: "s", discoveryv1.LabelManagedBy: manager,
		}}}
	written := cached.DeepCopy()
	written.Generation = 2
	factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	c := &controller{
		services: factory.Core().V1().Services().Lister(), endpoints: factory.Core().V1().Endpoints().Lister(),
		slices: factory.Discovery().V1().EndpointSlices().Lister(), tracker: util.NewEndpointSliceTracker(),
	}
	if err := errors.Join(
		factory.Core().V1().Services().Informer().GetStore().Add(service),
		factory.Discovery().V1().EndpointSlices().Informer().GetStore().Add(cached),
		factory.Core().V1().Endpoints().Informer().GetStore().Add(from),
	); err != nil {
		t.Fatal(err)
	}
	c.tracker.Update(written)
	if err := c.sync(t.Context(), types.NamespacedName{Namespace: "n", Name: "s"}); !apierrors.IsConflict(err) {
		t.Errorf("a sync with a cache that is behind ends with %v, want a conflict", err)
	}
}
