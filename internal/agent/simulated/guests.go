// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// Guest is the label, with the value "true", of nodes that a client created for this process to simulate.
const Guest = "mortise.dev/simulate"

// guestRange is the range of the addresses of pods on guests without a podCIDR: a network for tests.
const guestRange = "198.18.0.0/15"

// receive simulates guests until ctx is done.
func (f *fleet) receive(ctx context.Context, wg *sync.WaitGroup) error {
	factory := informers.NewSharedInformerFactoryWithOptions(f.client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.LabelSelector = Guest + "=true"
	}))
	informer := factory.Core().V1().Nodes().Informer()
	shared := newPool(netip.MustParsePrefix(guestRange))
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { f.comes(obj, shared) },
		DeleteFunc: f.goes,
	}); err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	wg.Go(func() { informer.RunWithContext(ctx) })
	return nil
}

// comes adds a guest, unless it is known.
func (f *fleet) comes(obj any, shared *pool) {
	object, ok := obj.(*corev1.Node)
	if !ok || object.Labels[Guest] != "true" {
		return
	}
	if f.nodes.get(object.Name) != nil {
		return
	}
	n := &node{name: object.Name, index: f.own, pool: shared, registered: func() {}}
	n.address = f.addresses.takeFor(object)
	if p, err := netip.ParsePrefix(object.Spec.PodCIDR); err == nil {
		n.pool = newPool(p.Masked())
	}
	n.capacity = f.o.Capacity.DeepCopy()
	maps.Copy(n.capacity, object.Status.Capacity)
	n.size = n.capacity.DeepCopy()
	maps.Copy(n.size, object.Status.Allocatable)
	f.nodes.set(n.name, n)
	f.claim(n.name)
	f.due.Add(n.name)
	for _, pod := range f.pods.on(n.name) {
		f.podQueue.Add(cache.MetaObjectToName(pod))
	}
}

// goes removes a guest that was deleted or has lost the label.
func (f *fleet) goes(obj any) {
	if t, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = t.Obj
	}
	object, ok := obj.(*corev1.Node)
	if !ok {
		return
	}
	if n := f.nodes.get(object.Name); n != nil && n.group == nil {
		f.nodes.set(object.Name, nil)
		f.addresses.release(n.address)
	}
}

// welcome updates a guest's object: the labels mark it as simulated, the status makes it ready.
func (f *fleet) welcome(ctx context.Context, n *node) error {
	got, err := f.client.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil // the informer will report it as well
	}
	if err != nil {
		return fmt.Errorf("read node: %w", err)
	}
	changed := got.DeepCopy()
	if changed.Labels == nil {
		changed.Labels = map[string]string{}
	}
	changed.Labels[Label] = "true"
	if changed.Labels[corev1.LabelHostname] == "" {
		changed.Labels[corev1.LabelHostname] = n.name
	}
	if !equality.Semantic.DeepEqual(changed, got) {
		if got, err = f.client.CoreV1().Nodes().Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update node: %w", err)
		}
	}
	return f.report(ctx, n, got)
}
