// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeipam allocates each node's pod CIDRs: one subnet of each cluster CIDR, which the controller writes to spec.podCIDR and
// spec.podCIDRs once and for all. [pool] keeps track of the free subnets; it does no I/O.
package nodeipam

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// Controller describes the loop.
func Controller() controllers.Controller {
	nodes := corev1.SchemeGroupVersion.WithResource("nodes")
	m := &masks{}
	return controllers.Controller{
		Name:      "node-ipam-controller",
		Account:   "node-controller",
		Component: "cidrAllocator",
		Inputs:    []schema.GroupVersionResource{nodes},
		Outputs:   []schema.GroupVersionResource{nodes},
		Settings:  m.declare(),
		Check:     func(cluster *controllers.Cluster) error { return m.check(cluster.PodCIDRs) },
		New:       func(d *controllers.Deps) (controllers.Runner, error) { return build(d, m) },
	}
}

type controller struct {
	client   kubernetes.Interface
	recorder record.EventRecorder
	nodes    listers.NodeLister
	queue    *controllers.Queue[string]

	mu     sync.Mutex
	pools  []*pool
	meters *meters
}

func build(d *controllers.Deps, m *masks) (controllers.Runner, error) {
	nodes := d.Informers.Core().V1().Nodes()
	c := &controller{
		client: d.Client, recorder: d.Recorder, nodes: nodes.Lister(), queue: controllers.NewQueue[string](d, "cidrallocator_node", 4),
	}
	var err error
	if c.meters, err = newMeters(d); err != nil {
		return nil, err
	}
	for _, cidr := range d.Cluster.PodCIDRs {
		bits := m.of(cidr)
		switch {
		case bits != 0:
		case cidr.Addr().Is6():
			bits = max(64, cidr.Bits())
		default:
			bits = max(24, cidr.Bits())
		}
		p, err := newPool(cidr, bits)
		if err != nil {
			return nil, err
		}
		// No node gets the service addresses within the pod range.
		if s := d.Cluster.ServiceCIDR; s.IsValid() && s.Overlaps(cidr) && s.Bits() >= cidr.Bits() {
			for i := range p.size {
				if p.subnet(i).Overlaps(s) {
					p.taken[i] = ""
				}
			}
		}
		c.pools = append(c.pools, p)
		c.meters.began(p)
	}
	err = controllers.Subscribe(d, nodes.Informer(), controllers.Handler[*corev1.Node]{
		Add: c.seen,
		Update: func(_, node *corev1.Node) {
			if len(node.Spec.PodCIDRs) == 0 {
				c.seen(node)
			}
		},
		Delete: func(node *corev1.Node) {
			c.each(node.Spec.PodCIDRs, func(p *pool, prefix netip.Prefix) { p.release(prefix, node.Name) })
			c.retry()
		},
	})
	return controllers.RunnerFunc(func(ctx context.Context) error {
		// The initial list is complete: the pools know the nodes' subnets. Only now is it safe to allocate.
		return c.queue.Run(ctx, c.sync)
	}), err
}

func (c *controller) seen(node *corev1.Node) {
	c.each(node.Spec.PodCIDRs, func(p *pool, prefix netip.Prefix) { p.occupy(prefix, node.Name) })
	if len(node.Spec.PodCIDRs) == 0 {
		c.queue.Add(node.Name)
	}
}

// retry enqueues the nodes without a subnet when one has become free.
func (c *controller) retry() {
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return
	}
	for _, node := range nodes {
		if len(node.Spec.PodCIDRs) == 0 {
			c.queue.Add(node.Name)
		}
	}
}

func (c *controller) each(cidrs []string, f func(*pool, netip.Prefix)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cidr := range cidrs {
		prefix, err := netip.ParsePrefix(cidr)
		if err != nil {
			continue
		}
		for _, p := range c.pools {
			before := len(p.taken)
			f(p, prefix)
			c.meters.changed(p, before)
		}
	}
}

func (c *controller) sync(ctx context.Context, name string) error {
	node, err := c.nodes.Get(name)
	if apierrors.IsNotFound(err) || err == nil && (len(node.Spec.PodCIDRs) > 0 || len(c.pools) == 0 || node.DeletionTimestamp != nil) {
		return nil
	} else if err != nil {
		return fmt.Errorf("get node: %w", err)
	}
	given, ok := c.take(name)
	if !ok {
		c.recorder.Eventf(&corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: name, UID: node.UID}, corev1.EventTypeNormal,
			"CIDRNotAvailable", "Node %s status is now: %s", name, "CIDRNotAvailable")
		return nil // the deletion of a node enqueues this one
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"podCIDR": given[0], "podCIDRs": given},
		"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion}})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	_, err = c.client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		// After some errors the write may have taken effect; the node's next state shows whether it did.
		if !apierrors.IsServerTimeout(err) && !apierrors.IsTimeout(err) {
			c.each(given, func(p *pool, prefix netip.Prefix) { p.release(prefix, name) })
		}
		if apierrors.IsConflict(err) {
			return nil // the node has changed, perhaps by the controller's own last patch; its newer state enqueues it
		}
		return fmt.Errorf("patch node: %w", err)
	}
	return nil
}

// take allocates one subnet of each pool, or none.
func (c *controller) take(node string) ([]string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var given []string
	for i, p := range c.pools {
		before, at := len(p.taken), p.next
		prefix, ok := p.take(node)
		c.meters.tries.WithLabelValues(p.cluster.String()).Observe(float64((p.next-at+p.size-1)%p.size + 1))
		c.meters.changed(p, before)
		if !ok {
			for j, other := range c.pools[:i] {
				before := len(other.taken)
				other.release(netip.MustParsePrefix(given[j]), node)
				c.meters.changed(other, before)
			}
			return nil, false
		}
		given = append(given, prefix.String())
	}
	return given, true
}
