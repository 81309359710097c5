// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// adopting is an indexer in which the pod is adopted as soon as anybody has looked anything up.
type adopting struct {
	cache.Indexer
	t       *testing.T
	adopted *corev1.Pod
}

func (a adopting) ByIndex(name, key string) ([]any, error) {
	found, err := a.Indexer.ByIndex(name, key)
	if err := a.Update(a.adopted); err != nil {
		a.t.Error(err)
	}
	return found, err
}

func TestPodIsFoundOnceWhileItIsAdopted(t *testing.T) {
	owner := &metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "web"}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-0", Namespace: "default", UID: "web-0"}}
	informer := cache.NewSharedIndexInformer(nil, pod, 0, cache.Indexers{})
	if err := IndexByController(informer); err != nil {
		t.Fatal(err)
	}
	pods := informer.GetIndexer()
	if err := pods.Add(pod); err != nil {
		t.Fatal(err)
	}
	adopted := pod.DeepCopy()
	adopted.OwnerReferences = []metav1.OwnerReference{{UID: owner.UID, Name: owner.Name, Controller: new(true)}}
	found, err := ByController(adopting{Indexer: pods, t: t, adopted: adopted}, owner, true)
	if err != nil || len(found) != 1 || !Controlled(found[0], owner) {
		t.Errorf("found %v (%v), want the adopted pod once", found, err)
	}
}
