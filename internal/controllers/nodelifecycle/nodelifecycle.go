// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodelifecycle notices when a node falls silent, and keeps nodes' taints in step with their conditions.
//
// A node's heartbeat is its Lease in kube-node-lease, or a change of its Ready condition. What counts is when this
// process saw it, not what the node's clock says. A heartbeat costs an entry in a map; only when one fails to come for
// 50 seconds is the node looked at: its conditions become Unknown, it gets the taints unreachable, and its pods count as
// not ready, so that services send them nothing.
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
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

// Controller describes the loop.
func Controller() controllers.Controller {
	nodes, pods := corev1.SchemeGroupVersion.WithResource("nodes"), corev1.SchemeGroupVersion.WithResource("pods")
	return controllers.Controller{
		Name:      "node-lifecycle-controller",
		Component: "node-controller",
		Inputs:    []schema.GroupVersionResource{nodes, pods, coordinationv1.SchemeGroupVersion.WithResource("leases")},
		Outputs:   []schema.GroupVersionResource{nodes, pods},
		New:       build,
	}
}

// byNode is the index of pods by the node they are on.
const byNode = "node"

type controller struct {
	client   kubernetes.Interface
	recorder record.EventRecorder
	clock    clock.PassiveClock
	nodes    listers.NodeLister
	pods     cache.Indexer
	queue    *controllers.Queue[string]

	mu    sync.Mutex
	heard map[string]time.Time
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	nodes, pods := d.Informers.Core().V1().Nodes(), d.Informers.Core().V1().Pods()
	leases := d.Informers.Coordination().V1().Leases()
	c := &controller{
		client: d.Client, recorder: d.Recorder, clock: d.Clock, nodes: nodes.Lister(), pods: pods.Informer().GetIndexer(),
		queue: controllers.NewQueue[string](d, "node-lifecycle", 4), heard: map[string]time.Time{},
	}
	beat := func(lease *coordinationv1.Lease) {
		if lease.Namespace == corev1.NamespaceNodeLease {
			c.hear(lease.Name)
		}
	}
	d.Await(pods.Informer())
	err := errors.Join(
		controllers.Index(pods.Informer(), byNode, func(obj any) ([]string, error) {
			if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
				return []string{pod.Spec.NodeName}, nil
			}
			return nil, nil
		}),
		controllers.Subscribe(d, leases.Informer(), controllers.Handler[*coordinationv1.Lease]{
			Add: beat,
			Update: func(before, now *coordinationv1.Lease) {
				if before.Spec.RenewTime == nil || !before.Spec.RenewTime.Equal(now.Spec.RenewTime) {
					beat(now)
				}
			},
		}),
		controllers.Subscribe(d, nodes.Informer(), controllers.Handler[*corev1.Node]{
			Add: func(node *corev1.Node) {
				c.hear(node.Name)
				c.tell(node.Name, "RegisteredNode", "Node %s event: Registered Node %s in Controller", node.Name)
				c.queue.Add(node.Name)
			},
			Update: func(before, now *corev1.Node) {
				was, is := condition(before.Status.Conditions, corev1.NodeReady), condition(now.Status.Conditions, corev1.NodeReady)
				if is != nil && (was == nil || !was.LastHeartbeatTime.Equal(&is.LastHeartbeatTime)) {
					c.hear(now.Name)
				}
				c.queue.Add(now.Name)
			},
			Delete: func(node *corev1.Node) {
				c.mu.Lock()
				delete(c.heard, node.Name)
				c.mu.Unlock()
				c.tell(node.Name, "RemovingNode", "Node %s event: Removing Node %s from Controller", node.Name)
			},
		}),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error { return c.queue.Run(ctx, c.sync) }), err
}

func (c *controller) hear(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard[node] = c.clock.Now()
}

// tell makes an event about a node; the reference's UID is the node's name, by which kubectl describe finds it.
func (c *controller) tell(node, reason, format, text string) {
	c.recorder.Eventf(&corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: node, UID: types.UID(node)}, corev1.EventTypeNormal, reason, format, node, text)
}

func (c *controller) sync(ctx context.Context, name string) error {
	node, err := c.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("get node: %w", err)
	}
	now := c.clock.Now()
	c.mu.Lock()
	heard := c.heard[name]
	c.mu.Unlock()
	if left := deadline(node, heard).Sub(now); left > 0 {
		c.queue.AddAfter(name, left+time.Millisecond)
	} else if conditions := silenced(node, now); !equality.Semantic.DeepEqual(conditions, node.Status.Conditions) {
		update := node.DeepCopy()
		update.Status.Conditions = conditions
		if node, err = c.client.CoreV1().Nodes().UpdateStatus(ctx, update, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update status: %w", err)
		}
		c.tell(name, "NodeNotReady", "Node %s status is now: %s", "NodeNotReady")
	}
	if next := taints(node, now); !equality.Semantic.DeepEqual(next, node.Spec.Taints) {
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion},
			"spec":     map[string]any{"taints": next},
		})
		if err != nil {
			return fmt.Errorf("encode patch: %w", err)
		}
		if _, err := c.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("patch taints: %w", err)
		}
	}
	if ready := condition(node.Status.Conditions, corev1.NodeReady); ready != nil && ready.Status == corev1.ConditionUnknown {
		return c.unready(ctx, name, now)
	}
	return nil
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
		if !ok || !workload.Ready(pod) {
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
