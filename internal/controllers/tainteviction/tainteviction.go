// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package tainteviction deletes pods from nodes with NoExecute taints that the pods do not, or no longer, tolerate.
//
// A pure function of a pod's tolerations and the node's taints returns how long the pod may stay ([grace]). The time counts from when this
// controller saw the taint. The controller decides again when the node's taints or the pod's tolerations change, and when the time is over.
// It does not restart the time while any taint that limits the pod's stay is left.
package tainteviction

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
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
		Name:    "taint-eviction-controller",
		Account: "node-controller",
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
	deleted  prometheus.Counter
	delay    prometheus.Histogram

	mu  sync.Mutex
	due map[types.NamespacedName]*due // pods that are to be evicted
}

// due records when to evict a pod, whether the controller has recorded the event, and whether it has deleted the pod: it then does nothing
// until something changes.
type due struct {
	at         time.Time
	said, done bool
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	nodes, pods := d.Informers.Core().V1().Nodes(), d.Informers.Core().V1().Pods()
	c := &controller{
		client: d.Client, recorder: d.Recorder, clock: d.Clock, nodes: nodes.Lister(), pods: pods.Lister(), index: pods.Informer().GetIndexer(),
		queue: controllers.NewQueue[types.NamespacedName](d, "noexec_taint_pod", 8), due: map[types.NamespacedName]*due{},
	}
	var err error
	c.deleted, c.delay, err = newMeters(d)
	wake := func(pod *corev1.Pod) {
		if node, err := c.nodes.Get(pod.Spec.NodeName); err == nil && len(noExecute(node)) > 0 || c.pending(controllers.Key(pod)) {
			c.renew(controllers.Key(pod))
			c.queue.Add(controllers.Key(pod))
		}
	}
	err = errors.Join(err,
		controllers.Index(pods.Informer(), byNode, func(obj any) ([]string, error) {
			if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
				return []string{pod.Spec.NodeName}, nil
			}
			return nil, nil
		}),
		controllers.Subscribe(d, pods.Informer(), controllers.Handler[*corev1.Pod]{
			Add: wake,
			Update: func(before, updated *corev1.Pod) {
				if before.Spec.NodeName != updated.Spec.NodeName || !equality.Semantic.DeepEqual(before.Spec.Tolerations, updated.Spec.Tolerations) {
					wake(updated)
				}
			},
			Delete: func(pod *corev1.Pod) {
				if c.pending(controllers.Key(pod)) {
					c.queue.Add(controllers.Key(pod))
				}
			},
		}),
		controllers.Subscribe(d, nodes.Informer(), controllers.Handler[*corev1.Node]{
			Add: func(node *corev1.Node) {
				if len(noExecute(node)) > 0 {
					c.wakePods(node)
				}
			},
			Update: func(before, updated *corev1.Node) {
				if !equality.Semantic.DeepEqual(noExecute(before), noExecute(updated)) {
					c.wakePods(updated)
				}
			},
		}),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error { return c.queue.Run(ctx, c.sync) }), err
}

// pending reports whether a pod is to be evicted at some time.
func (c *controller) pending(key types.NamespacedName) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.due[key]
	return ok
}

// renew lets the controller decide again about a pod that it has deleted and that may still exist.
func (c *controller) renew(key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if was, ok := c.due[key]; ok && was.done {
		delete(c.due, key)
	}
}

// cancel cancels the deletion of a pod, and records an event if its time was running.
func (c *controller) cancel(key types.NamespacedName) {
	c.mu.Lock()
	was, ok := c.due[key]
	delete(c.due, key)
	c.mu.Unlock()
	if ok && !was.said {
		c.tell(key, "Cancelling deletion of Pod %s")
	}
}

func (c *controller) tell(key types.NamespacedName, format string) {
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: key.Namespace, Name: key.Name}
	c.recorder.Eventf(ref, corev1.EventTypeNormal, "TaintManagerEviction", format, key)
}

// wakePods enqueues the pods of a node whose taints have changed.
func (c *controller) wakePods(node *corev1.Node) {
	objects, err := c.index.ByIndex(byNode, node.Name)
	if err != nil {
		return
	}
	for _, o := range objects {
		if pod, ok := o.(*corev1.Pod); ok {
			c.renew(controllers.Key(pod))
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

// never is the grace of a pod that does not tolerate a taint.
const never = -time.Second

// grace returns how long a pod with those tolerations may stay on a node with those taints: never if it does not tolerate one, else the
// shortest toleration; for each taint, the first matching toleration counts. It returns false if the pod may stay for ever.
func grace(taints []corev1.Taint, tolerations []corev1.Toleration) (time.Duration, bool) {
	var shortest time.Duration
	bounded := false
	for _, taint := range taints {
		at := slices.IndexFunc(tolerations, func(t corev1.Toleration) bool { return t.ToleratesTaint(logr.Discard(), &taint, false) })
		if at < 0 {
			return never, true
		}
		seconds := tolerations[at].TolerationSeconds
		if seconds == nil {
			continue
		}
		// More than a century means for ever, and must not overflow.
		if d := time.Duration(min(max(*seconds, 0), 100*365*24*3600)) * time.Second; !bounded || d < shortest {
			shortest, bounded = d, true
		}
	}
	return shortest, bounded
}

func (c *controller) sync(ctx context.Context, key types.NamespacedName) error {
	pod, err := c.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.cancel(key)
		return nil
	} else if err != nil {
		return fmt.Errorf("get pod: %w", err)
	}
	if pod.Spec.NodeName == "" {
		c.cancel(key) // another pod of the same name
		return nil
	}
	node, err := c.nodes.Get(pod.Spec.NodeName)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("get node: %w", err)
	}
	now := c.clock.Now()
	at, ok := c.decide(key, pod, node, now)
	if !ok {
		return nil
	}
	if left := at.Sub(now); left > 0 {
		c.queue.AddAfter(key, left)
		return nil
	}
	return c.evict(ctx, key, pod, now)
}

// decide returns when to evict a pod; false if it may stay. node is nil if it does not exist any more, which changes no earlier decision.
func (c *controller) decide(key types.NamespacedName, pod *corev1.Pod, node *corev1.Node, now time.Time) (time.Time, bool) {
	stay, bounded := never, false
	if node != nil {
		if taints := noExecute(node); len(taints) > 0 {
			stay, bounded = grace(taints, pod.Spec.Tolerations)
		}
		if !bounded {
			c.cancel(key)
			return time.Time{}, false
		}
	}
	c.mu.Lock()
	was, ok := c.due[key]
	if node == nil && !ok || ok && was.done {
		c.mu.Unlock()
		return time.Time{}, false
	}
	if !ok {
		was = &due{at: now.Add(max(stay, 0))}
		c.due[key] = was
	}
	sooner := node != nil && stay == never && was.at.After(now)
	if sooner {
		was.at = now
	}
	at := was.at
	c.mu.Unlock()
	if sooner {
		c.tell(key, "Cancelling deletion of Pod %s")
	}
	return at, true
}

// evict deletes a pod whose time is over. It records one event, however often it retries.
func (c *controller) evict(ctx context.Context, key types.NamespacedName, pod *corev1.Pod, now time.Time) error {
	c.mu.Lock()
	was := c.due[key]
	said := was.said
	was.said = true
	c.mu.Unlock()
	if !said {
		c.tell(key, "Marking for deletion Pod %s")
	}
	api := c.client.CoreV1().Pods(key.Namespace)
	patch, err := workload.Disrupted(pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint", pod.Generation, now)
	if err == nil && patch != nil {
		_, err = api.Patch(ctx, key.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err == nil {
		err = api.Delete(ctx, key.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	}
	switch {
	case err == nil:
		c.deleted.Inc()
		c.delay.Observe(c.clock.Since(was.at).Seconds())
	case !apierrors.IsNotFound(err) && !apierrors.IsConflict(err):
		return fmt.Errorf("evict pod: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	was.done = true
	return nil
}

// newMeters creates upstream's metrics of this controller, under their names.
func newMeters(d *controllers.Deps) (deleted prometheus.Counter, delay prometheus.Histogram, err error) {
	const subsystem = "taint_eviction_controller"
	deleted = controllers.Keep(d.Metrics, &err, prometheus.NewCounter(prometheus.CounterOpts{
		Subsystem: subsystem, Name: "pod_deletions_total", Help: "Pods deleted from tainted nodes.",
	}))
	delay = controllers.Keep(d.Metrics, &err, prometheus.NewHistogram(prometheus.HistogramOpts{
		Subsystem: subsystem, Name: "pod_deletion_duration_seconds", Help: "From when a pod has to go to its deletion.",
		Buckets: []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30, 60, 120, 180, 240},
	}))
	return deleted, delay, err
}
