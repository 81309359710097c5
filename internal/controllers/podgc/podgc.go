// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podgc removes pods that no node will ever finish with: those of nodes that are gone or have the taint out-of-service, those
// that were deleted before they had a node, and the oldest finished ones when there are too many.
package podgc

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

const (
	quarantine = 40 * time.Second // how long a node is missing before it counts as gone
)

// Controller describes the loop.
func Controller() controllers.Controller {
	nodes, pods := corev1.SchemeGroupVersion.WithResource("nodes"), corev1.SchemeGroupVersion.WithResource("pods")
	kept := 12500
	return controllers.Controller{
		Name:    "pod-garbage-collector-controller",
		Account: "pod-garbage-collector",
		Inputs:  []schema.GroupVersionResource{nodes, pods},
		Outputs: []schema.GroupVersionResource{pods},
		Settings: []controllers.Setting{{
			Flag: "terminated-pod-gc-threshold", Field: "controllers.podGC.terminatedPodGCThreshold", Value: controllers.Value(&kept),
			Usage: "Number of terminated pods that may exist before the collector deletes terminated pods. 0 or less keeps all.",
		}},
		New: func(d *controllers.Deps) (controllers.Runner, error) { return build(d, max(kept, 0)) },
	}
}

// sweep is the queue's only key: one sync handles all pods.
const sweep = "sweep"

type controller struct {
	client kubernetes.Interface
	clock  clock.PassiveClock
	nodes  listers.NodeLister
	pods   listers.PodLister
	queue  *controllers.Queue[string]
	kept   int // the number of finished pods to keep; 0: all
	meters *meters
	missed map[string]time.Time // missing nodes that pods name, and since when; only the worker uses it
}

func build(d *controllers.Deps, kept int) (controllers.Runner, error) {
	nodes, pods := d.Informers.Core().V1().Nodes(), d.Informers.Core().V1().Pods()
	c := &controller{
		client: d.Client, clock: d.Clock, nodes: nodes.Lister(), pods: pods.Lister(),
		queue: controllers.NewQueue[string](d, "orphaned_pods_nodes", 1), missed: map[string]time.Time{}, kept: kept,
	}
	var err error
	c.meters, err = newMeters(d)
	err = errors.Join(err,
		controllers.Subscribe(d, nodes.Informer(), controllers.Handler[*corev1.Node]{
			Update: func(before, updated *corev1.Node) {
				if !abandoned(before) && abandoned(updated) {
					c.queue.Add(sweep)
				}
			},
			Delete: func(*corev1.Node) { c.queue.Add(sweep) },
		}),
		controllers.Subscribe(d, pods.Informer(), controllers.Handler[*corev1.Pod]{
			Add: func(pod *corev1.Pod) {
				if _, err := c.nodes.Get(pod.Spec.NodeName); pod.Spec.NodeName != "" && apierrors.IsNotFound(err) {
					c.queue.Add(sweep)
				}
			},
			Update: func(before, updated *corev1.Pod) {
				unbound := updated.DeletionTimestamp != nil && updated.Spec.NodeName == ""
				if updated.DeletionTimestamp != nil && before.DeletionTimestamp == nil {
					if node, err := c.nodes.Get(updated.Spec.NodeName); err == nil && abandoned(node) {
						c.queue.Add(sweep)
					}
				}
				if unbound || workload.Finished(updated) && !workload.Finished(before) {
					c.queue.AddAfter(sweep, time.Second) // many pods finish together
				}
			},
		}),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error {
		c.queue.Add(sweep)
		return c.queue.Run(ctx, c.sync)
	}), err
}

// abandoned reports whether nothing runs on a node any more: it is not ready, and has the taint out-of-service.
func abandoned(node *corev1.Node) bool {
	ready := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	return !ready && slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

func (c *controller) sync(ctx context.Context, _ string) error {
	pods, err := c.pods.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	now := c.clock.Now()
	var errs []error
	absent := map[string]bool{}
	var finished []*corev1.Pod
	for _, pod := range pods {
		name := pod.Spec.NodeName
		switch {
		case name == "" && pod.DeletionTimestamp != nil:
			errs = append(errs, c.remove(ctx, pod, unscheduled))
			continue
		case name != "" && !absent[name]:
			if node, err := c.nodes.Get(name); apierrors.IsNotFound(err) {
				absent[name] = true
			} else if err == nil && pod.DeletionTimestamp != nil && abandoned(node) {
				errs = append(errs, c.remove(ctx, pod, outOfService))
				continue
			}
		}
		if workload.Finished(pod) {
			finished = append(finished, pod)
		}
	}
	for name := range c.missed {
		if !absent[name] {
			delete(c.missed, name)
		}
	}
	for name := range absent {
		since, ok := c.missed[name]
		if !ok {
			since, c.missed[name] = now, now
		}
		if left := since.Add(quarantine).Sub(now); left > 0 {
			c.queue.AddAfter(sweep, left)
			continue
		}
		if _, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			errs = append(errs, err)
			continue
		}
		for _, pod := range pods {
			if pod.Spec.NodeName == name {
				errs = append(errs, c.remove(ctx, pod, orphaned))
			}
		}
	}
	if over := len(finished) - c.kept; c.kept > 0 && over > 0 {
		slices.SortFunc(finished, before)
		for _, pod := range finished[:over] {
			errs = append(errs, c.remove(ctx, pod, terminated))
		}
	}
	return errors.Join(errs...)
}

// before orders finished pods for deletion: first those that nodes evicted, since no controller waits for them, then the oldest.
func before(a, b *corev1.Pod) int {
	rank := func(pod *corev1.Pod) int {
		if pod.Status.Phase == corev1.PodFailed && pod.Status.Reason == "Evicted" {
			return 0
		}
		return 1
	}
	return cmp.Or(rank(a)-rank(b), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// remove deletes a pod without grace, and counts it. It first marks an unfinished pod as failed.
func (c *controller) remove(ctx context.Context, pod *corev1.Pod, why reason) error {
	c.meters.deleted.WithLabelValues(pod.Namespace, string(why)).Inc()
	err := c.fail(ctx, pod, why)
	if err == nil {
		now := int64(0)
		err = c.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
			metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	}
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	c.meters.failed.WithLabelValues(pod.Namespace, string(why)).Inc()
	return fmt.Errorf("remove pod %s/%s: %w", pod.Namespace, pod.Name, err)
}

// fail marks an unfinished pod as failed, and as disrupted too if its node is gone.
func (c *controller) fail(ctx context.Context, pod *corev1.Pod, why reason) error {
	if workload.Finished(pod) {
		return nil
	}
	status := map[string]any{"phase": corev1.PodFailed, "observedGeneration": pod.Generation}
	if why == orphaned {
		status["$setElementOrder/conditions"] = workload.ConditionOrder(pod, corev1.DisruptionTarget)
		status["conditions"] = []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC", Message: "PodGC: node no longer exists",
			ObservedGeneration: pod.Generation, LastTransitionTime: metav1.NewTime(c.clock.Now()),
		}}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	_, err = c.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
