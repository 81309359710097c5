// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// rangeWithin is the time in which a single node waits for its podCIDR. A cluster may assign none.
const rangeWithin = 20 * time.Second

// podsFollowed returns the informers of all pods; a single node watches only its own, as the API server allows no more.
func (f *fleet) podsFollowed() informers.SharedInformerFactory {
	if f.o.Alone == "" {
		return informers.NewSharedInformerFactory(f.client, 0)
	}
	return informers.NewSharedInformerFactoryWithOptions(f.client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", f.o.Alone).String()
	}))
}

// settle waits for the podCIDR of a single node. Other nodes choose their own.
func (f *fleet) settle(ctx context.Context, n *node) error {
	if f.o.Alone == "" {
		return nil
	}
	own := fields.OneTermEqualSelector("metadata.name", n.name).String()
	nodes := f.client.CoreV1().Nodes()
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = own
			return nodes.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = own
			return nodes.Watch(ctx, o)
		},
	}
	waiting, cancel := context.WithTimeout(ctx, rangeWithin)
	defer cancel()
	last, err := watchtools.UntilWithSync(waiting, cache.ToListWatcherWithWatchListSemantics(source, f.client), &corev1.Node{}, nil,
		func(e watch.Event) (bool, error) {
			node, ok := e.Object.(*corev1.Node)
			return ok && e.Type != watch.Deleted && node.Spec.PodCIDR != "", nil
		})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		f.log.Warn("Cluster assigned no pod CIDR to the node", "node", n.name, "instead", guestRange)
		n.pool.move(netip.MustParsePrefix(guestRange))
		return nil
	}
	p, err := netip.ParsePrefix(last.Object.(*corev1.Node).Spec.PodCIDR)
	if err != nil {
		return fmt.Errorf("read the range of node %s: %w", n.name, err)
	}
	n.pool.move(p.Masked())
	return nil
}
