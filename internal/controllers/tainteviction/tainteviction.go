// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package tainteviction deletes pods from nodes with NoExecute taints that they do not tolerate, or no longer.
//
// When a pod must go is a pure function of its tolerations and the node's taints ([deadline]); a pod that may stay for a
// while comes back to the queue at its time, and is judged anew then: the taint may have gone.
package tainteviction

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
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
)

// Controller describes the loop.
func Controller() controllers.Controller {
	nodes, pods := corev1.SchemeGroupVersion.WithResource("nodes"), corev1.SchemeGroupVersion.WithResource("pods")
	return controllers.Controller{
		Name:    "taint-eviction-controller",
		Inputs:  []schema.GroupVersionResource{nodes, pods},
		Outputs: []schema.GroupVersionResource{pods},
		New:     build,
	}
}

const byNode = "node"

type controller struct {
	client   kubernetes.Interface
	recorder record.EventRecorder
	clock    clock.PassiveClock
	nodes    listers.NodeLister
	pods     listers.PodLister
	index    cache.Indexer
	queue    *controllers.Queue[types.NamespacedName]
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	nodes, pods := d.Informers.Core().V1().Nodes(), d.Informers.Core().V1().Pods()
	c := &controller{
		client: d.Client, recorder: d.Recorder, clock: d.Clock, nodes: nodes.Lister(), pods: pods.Lister(), index: pods.Informer().GetIndexer(),
		queue: controllers.NewQueue[types.NamespacedName](d, "taint-eviction", 4),
	}
	wake := func(pod *corev1.Pod) {
		if node, err := c.nodes.Get(pod.Spec.NodeName); err == nil && len(noExecute(node)) > 0 {
			c.queue.Add(controllers.Key(pod))
		}
	}
	err := errors.Join(
		controllers.Index(pods.Informer(), byNode, func(obj any) ([]string, error) {
			if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
				return []string{pod.Spec.NodeName}, nil
			}
			return nil, nil
		}),
		controllers.Subscribe(d, pods.Informer(), controllers.Handler[*corev1.Pod]{
			Add: wake,
			Update: func(before, now *corev1.Pod) {
				if before.Spec.NodeName != now.Spec.NodeName || len(before.Spec.Tolerations) != len(now.Spec.Tolerations) {
					wake(now)
				}
			},
		}),
		controllers.Subscribe(d, nodes.Informer(), controllers.Handler[*corev1.Node]{
			Add: c.wakePods,
			Update: func(before, now *corev1.Node) {
				if len(noExecute(before)) > 0 || len(noExecute(now)) > 0 {
					c.wakePods(now)
				}
			},
		}),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error { return c.queue.Run(ctx, c.sync) }), err
}

// wakePods wakes the pods of a node that has taints to flee from.
func (c *controller) wakePods(node *corev1.Node) {
	if len(noExecute(node)) == 0 {
		return
	}
	objects, err := c.index.ByIndex(byNode, node.Name)
	if err != nil {
		return
	}
	for _, o := range objects {
		if pod, ok := o.(*corev1.Pod); ok {
			c.queue.Add(controllers.Key(pod))
		}
	}
}

func noExecute(node *corev1.Node) []corev1.Taint {
	var found []corev1.Taint
	for _, t := range node.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoExecute {
			found = append(found, t)
		}
	}
	return found
}

// deadline is when a pod with those tolerations must leave a node with those taints: at once (the zero time) if one is
// not tolerated, else when the shortest of the tolerations that match has passed since the taint came. It is false when
// the pod may stay for ever.
func deadline(taints []corev1.Taint, tolerations []corev1.Toleration) (time.Time, bool) {
	var first time.Time
	bounded := false
	for _, taint := range taints {
		tolerated := false
		for i := range tolerations {
			t := &tolerations[i]
			if !t.ToleratesTaint(logr.Discard(), &taint, false) {
				continue
			}
			tolerated = true
			if t.TolerationSeconds == nil {
				continue
			}
			var since time.Time
			if taint.TimeAdded != nil {
				since = taint.TimeAdded.Time
			}
			if at := since.Add(time.Duration(max(*t.TolerationSeconds, 0)) * time.Second); !bounded || at.Before(first) {
				first, bounded = at, true
			}
		}
		if !tolerated {
			return time.Time{}, true
		}
	}
	return first, bounded
}

func (c *controller) sync(ctx context.Context, key types.NamespacedName) error {
	pod, err := c.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && (pod.DeletionTimestamp != nil || pod.Spec.NodeName == "") {
		return nil
	} else if err != nil {
		return fmt.Errorf("get pod: %w", err)
	}
	node, err := c.nodes.Get(pod.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("get node: %w", err)
	}
	taints := noExecute(node)
	at, leave := deadline(taints, pod.Spec.Tolerations)
	if len(taints) == 0 || !leave {
		return nil
	}
	if left := at.Sub(c.clock.Now()); left > 0 {
		c.queue.AddAfter(key, left)
		return nil
	}
	c.recorder.Eventf(pod, corev1.EventTypeNormal, "TaintManagerEviction", "Marking for deletion Pod %s", key)
	err = c.client.CoreV1().Pods(key.Namespace).Delete(ctx, key.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
