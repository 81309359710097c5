// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodettl annotates nodes with the number of seconds for which they may cache secrets and config maps: the more nodes there are,
// the longer.
//
// The ranges of cluster sizes overlap, so that a cluster at a bound does not switch back and forth: with 101 nodes the time becomes 15 s,
// and it becomes 0 again only below 90 nodes.
package nodettl

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// Controller describes the loop.
func Controller() controllers.Controller {
	nodes := corev1.SchemeGroupVersion.WithResource("nodes")
	return controllers.Controller{
		Name:    "ttl-controller",
		Account: "ttl-controller",
		Inputs:  []schema.GroupVersionResource{nodes},
		Outputs: []schema.GroupVersionResource{nodes},
		New:     build,
	}
}

// step is one range of cluster sizes.
type step struct{ fewest, most, seconds int }

var steps = [...]step{{0, 100, 0}, {90, 500, 15}, {450, 1000, 30}, {900, 2000, 60}, {1800, math.MaxInt, 300}}

// next returns the step of a cluster of that many nodes that was at another step.
func next(at, nodes int) int {
	for nodes > steps[at].most {
		at++
	}
	for nodes < steps[at].fewest {
		at--
	}
	return at
}

type controller struct {
	client kubernetes.Interface
	nodes  listers.NodeLister
	queue  *controllers.Queue[string]

	mu    sync.Mutex
	count int
	at    int
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	nodes := d.Informers.Core().V1().Nodes()
	c := &controller{client: d.Client, nodes: nodes.Lister(), queue: controllers.NewQueue[string](d, "ttlcontroller", 5)}
	err := controllers.Subscribe(d, nodes.Informer(), controllers.Handler[*corev1.Node]{
		Add: func(node *corev1.Node) {
			c.counted(1)
			c.queue.Add(node.Name)
		},
		Update: func(before, updated *corev1.Node) {
			if before.Annotations[corev1.ObjectTTLAnnotationKey] != updated.Annotations[corev1.ObjectTTLAnnotationKey] {
				c.queue.Add(updated.Name)
			}
		},
		Delete: func(*corev1.Node) { c.counted(-1) },
	})
	return controllers.RunnerFunc(func(ctx context.Context) error { return c.queue.Run(ctx, c.sync) }), err
}

// counted records that nodes were added or removed. If that changes the time, it enqueues all nodes.
func (c *controller) counted(more int) {
	c.mu.Lock()
	c.count += more
	before := c.at
	c.at = next(c.at, max(c.count, 0))
	changed := c.at != before
	c.mu.Unlock()
	if !changed {
		return
	}
	all, err := c.nodes.List(labels.Everything())
	if err != nil {
		return // a lister returns no error
	}
	for _, node := range all {
		c.queue.Add(node.Name)
	}
}

func (c *controller) seconds() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return steps[c.at].seconds
}

func (c *controller) sync(ctx context.Context, name string) error {
	node, err := c.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("get node: %w", err)
	}
	want := c.seconds()
	if text, ok := node.Annotations[corev1.ObjectTTLAnnotationKey]; ok {
		if have, err := strconv.Atoi(text); err == nil && have == want {
			return nil
		}
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}}}`, corev1.ObjectTTLAnnotationKey, want)
	if _, err := c.client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("annotate node: %w", err)
	}
	return nil
}
