// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodelifecycle detects nodes that stop reporting, and keeps nodes' taints in line with their conditions.
//
// A node's heartbeat is an update of its Lease in kube-node-lease, or a change of its Ready condition. The controller counts from when it
// saw the heartbeat, not from the node's clock. A heartbeat costs an entry in a map. Only when none comes for 50 seconds does the
// controller act on the node: it sets the node's conditions to Unknown, adds the taint unreachable, and marks the node's pods as not ready,
// so that services send them no traffic.
//
// The NoExecute taints, which evict pods, come to one node after the other, depending on the state of all nodes in the zone: see [zones].
// The controller collects changes for five seconds before it judges zones, since nodes that fail for one reason stop reporting one by one.
package nodelifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	coordinationlisters "k8s.io/client-go/listers/coordination/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/podconditions"
)

// Controller describes the loop.
func Controller() controllers.Controller {
	nodes, pods := corev1.SchemeGroupVersion.WithResource("nodes"), corev1.SchemeGroupVersion.WithResource("pods")
	s := defaults()
	return controllers.Controller{
		Name:      "node-lifecycle-controller",
		Account:   "node-controller",
		Component: "node-controller",
		Inputs:    []schema.GroupVersionResource{nodes, pods, coordinationv1.SchemeGroupVersion.WithResource("leases")},
		Outputs:   []schema.GroupVersionResource{nodes, pods},
		Settings:  s.declare(),
		Check:     func(*controllers.Cluster) error { return s.check() },
		New:       func(d *controllers.Deps) (controllers.Runner, error) { return build(d, *s) },
	}
}

// byNode is the index of pods by node.
const byNode = "node"

// judging is the queue key for judging the zones; no node has that name.
const judging = ""

type controller struct {
	client   kubernetes.Interface
	recorder record.EventRecorder
	clock    clock.PassiveClock
	nodes    listers.NodeLister
	pods     cache.Indexer
	leases   coordinationlisters.LeaseLister
	queue    *controllers.Queue[string]
	settings settings

	meters *meters

	mu    sync.Mutex
	heard map[string]time.Time
	zones *zones
}

func build(d *controllers.Deps, s settings) (controllers.Runner, error) {
	nodes, pods := d.Informers.Core().V1().Nodes(), d.Informers.Core().V1().Pods()
	leases := d.Informers.Coordination().V1().Leases()
	c := &controller{
		client: d.Client, recorder: d.Recorder, clock: d.Clock, nodes: nodes.Lister(), pods: pods.Informer().GetIndexer(),
		leases: leases.Lister(),
		queue:  controllers.NewQueue[string](d, "node_lifecycle_controller", 4), heard: map[string]time.Time{},
		settings: s,
	}
	c.zones = newZones(c.settings)
	beat := func(lease *coordinationv1.Lease) {
		if lease.Namespace == corev1.NamespaceNodeLease {
			c.hear(lease.Name, c.clock.Now())
		}
	}
	bound := func(pod *corev1.Pod) {
		if node, err := c.nodes.Get(pod.Spec.NodeName); err == nil && readiness(node) == corev1.ConditionUnknown {
			c.queue.Add(node.Name)
		}
	}
	var err error
	c.meters, err = newMeters(d)
	err = errors.Join(err,
		controllers.Index(pods.Informer(), byNode, func(obj any) ([]string, error) {
			if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
				return []string{pod.Spec.NodeName}, nil
			}
			return nil, nil
		}),
		controllers.Subscribe(d, pods.Informer(), controllers.Handler[*corev1.Pod]{
			Add: bound,
			Update: func(before, updated *corev1.Pod) {
				if before.Spec.NodeName != updated.Spec.NodeName {
					bound(updated)
				}
			},
		}),
		controllers.Subscribe(d, leases.Informer(), controllers.Handler[*coordinationv1.Lease]{
			Add: beat,
			Update: func(before, updated *coordinationv1.Lease) {
				if before.Spec.RenewTime == nil || !before.Spec.RenewTime.Equal(updated.Spec.RenewTime) {
					beat(updated)
				}
			},
		}),
		controllers.Subscribe(d, nodes.Informer(), controllers.Handler[*corev1.Node]{
			Add: func(node *corev1.Node) {
				at := c.clock.Now()
				if readiness(node) == "" {
					at = node.CreationTimestamp.Time
				}
				c.hear(node.Name, at)
				c.tell(node, "RegisteredNode", "Node %s event: Registered Node %s in Controller", node.Name)
				c.observe(node)
				c.queue.Add(node.Name)
			},
			Update: func(before, updated *corev1.Node) {
				was, is := condition(before.Status.Conditions, corev1.NodeReady), condition(updated.Status.Conditions, corev1.NodeReady)
				if (was == nil) != (is == nil) || is != nil && !was.LastHeartbeatTime.Equal(&is.LastHeartbeatTime) {
					c.hear(updated.Name, c.clock.Now())
				}
				c.observe(updated)
				c.queue.Add(updated.Name)
			},
			Delete: func(node *corev1.Node) {
				c.mu.Lock()
				delete(c.heard, node.Name)
				c.zones.remove(node.Name)
				c.mu.Unlock()
				c.tell(node, "RemovingNode", "Node %s event: Removing Node %s from Controller", node.Name)
				c.queue.AddAfter(judging, c.settings.period)
			},
		}),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error {
		return c.queue.Run(ctx, func(ctx context.Context, name string) error {
			if name == judging {
				return c.judge(ctx)
			}
			return c.sync(ctx, name)
		})
	}), err
}

// hear records a heartbeat; the latest counts.
func (c *controller) hear(node string, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.heard[node].Before(at) {
		c.heard[node] = at
	}
}

// observe updates a node's zone, and enqueues a judgement if the node's state is new.
func (c *controller) observe(n *corev1.Node) {
	status, has := readiness(n), fled(n)
	_, excluded := n.Labels["node.kubernetes.io/exclude-disruption"]
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.zones.observe(n.Name, node{
		zone: zoneOf(n.Labels), status: status, counted: !excluded, waiting: has == "" && fleeing(status) != "", tainted: has != "",
	}) {
		c.queue.AddAfter(judging, c.settings.period)
	}
}

// tell records an event for a node.
func (c *controller) tell(node *corev1.Node, reason, format, text string) {
	c.recorder.Eventf(&corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: node.Name, UID: node.UID}, corev1.EventTypeNormal, reason,
		format, node.Name, text)
}

func (c *controller) sync(ctx context.Context, name string) error {
	node, err := c.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("get node: %w", err)
	}
	if node, err = c.listen(ctx, node); err != nil {
		return err
	}
	if err := c.patch(ctx, node, fled(node) != ""); err != nil {
		return err
	}
	if readiness(node) == corev1.ConditionUnknown {
		return c.unready(ctx, name, c.clock.Now())
	}
	return nil
}

// listen sets a silent node's conditions to Unknown, and returns the node as it is then.
func (c *controller) listen(ctx context.Context, node *corev1.Node) (*corev1.Node, error) {
	now := c.clock.Now()
	defer func() { c.meters.one.Observe(c.clock.Since(now).Seconds()) }()
	c.mu.Lock()
	heard := c.heard[node.Name]
	c.mu.Unlock()
	if left := c.settings.deadline(node, heard).Sub(now); left > 0 {
		c.queue.AddAfter(node.Name, left+time.Millisecond)
		return node, nil
	}
	conditions := silenced(node, now)
	if was := condition(node.Status.Conditions, corev1.NodeReady); was != nil && was.Status == corev1.ConditionUnknown {
		return node, nil // the node is known to be silent, whatever its other conditions say
	}
	// The cache may be behind: read the Lease from the server before giving the node up.
	live, err := c.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, node.Name, metav1.GetOptions{})
	if err == nil {
		if cached, err := c.leases.Leases(corev1.NamespaceNodeLease).Get(node.Name); err != nil ||
			cached.ResourceVersion != live.ResourceVersion {
			c.queue.AddAfter(node.Name, c.settings.period)
			return node, nil
		}
	} else if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("get lease: %w", err)
	}
	was := readiness(node)
	update := node.DeepCopy()
	update.Status.Conditions = conditions
	if node, err = c.client.CoreV1().Nodes().UpdateStatus(ctx, update, metav1.UpdateOptions{}); err != nil {
		return nil, fmt.Errorf("update status: %w", err)
	}
	if was == corev1.ConditionTrue {
		c.tell(node, "NodeNotReady", "Node %s status is now: %s", "NodeNotReady")
	}
	return node, nil
}

// patch updates the taints and labels that follow from a node's state.
func (c *controller) patch(ctx context.Context, node *corev1.Node, flee bool) error {
	change := map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion}
	patch := map[string]any{"metadata": change}
	changed := false
	if next := taints(node, flee, c.clock.Now()); !equality.Semantic.DeepEqual(next, node.Spec.Taints) {
		patch["spec"], changed = map[string]any{"taints": next}, true
	}
	if next := oldLabels(node.Labels); len(next) > 0 {
		change["labels"], changed = next, true
	}
	if !changed {
		return nil
	}
	data, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	if _, err := c.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, data, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("patch node: %w", err)
	}
	return nil
}

// judge executes the decision of the zones.
func (c *controller) judge(ctx context.Context) error {
	now := c.clock.Now()
	defer func() { c.meters.all.Observe(c.clock.Since(now).Seconds()) }()
	c.mu.Lock()
	v := c.zones.judge(now)
	c.meters.tell(c.zones)
	if v.forgive {
		for name := range c.heard {
			c.heard[name] = now
		}
	}
	c.mu.Unlock()
	if !v.again.IsZero() {
		c.queue.AddAfter(judging, v.again.Sub(now))
	}
	var errs []error
	for i, name := range append(v.untaint, v.taint...) {
		node, err := c.nodes.Get(name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err == nil {
			if err = c.patch(ctx, node, i >= len(v.untaint)); err == nil && i >= len(v.untaint) {
				c.meters.emptied.WithLabelValues(zoneOf(node.Labels)).Inc()
			}
		}
		if err == nil || apierrors.IsNotFound(err) {
			continue
		}
		errs = append(errs, fmt.Errorf("taint %s: %w", name, err))
		c.mu.Lock()
		if i < len(v.untaint) {
			c.zones.rejudge()
		} else {
			c.zones.retry(name)
		}
		c.mu.Unlock()
	}
	return errors.Join(errs...)
}

// unready marks the pods of a lost node as not ready.
func (c *controller) unready(ctx context.Context, node string, now time.Time) error {
	objects, err := c.pods.ByIndex(byNode, node)
	if err != nil {
		return fmt.Errorf("look up pods: %w", err)
	}
	var errs []error
	for _, o := range objects {
		pod, ok := o.(*corev1.Pod)
		if !ok {
			continue
		}
		if ready := podconditions.Find(pod.Status.Conditions, corev1.PodReady); ready == nil || ready.Status == corev1.ConditionFalse {
			continue
		}
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion},
			"status": map[string]any{"conditions": []map[string]any{{
				"type": corev1.PodReady, "status": corev1.ConditionFalse, "lastTransitionTime": metav1.NewTime(now),
			}}},
		})
		if err != nil {
			return fmt.Errorf("encode patch: %w", err)
		}
		_, err = c.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		if err == nil {
			c.recorder.Event(pod, corev1.EventTypeWarning, "NodeNotReady", "Node is not ready")
		} else if !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("patch pod: %w", err))
		}
	}
	return errors.Join(errs...)
}
