// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package devicetaint deletes pods that use devices with NoExecute taints which their claims do not, or no longer, tolerate.
//
// The taints come from the ResourceSlices that drivers publish and from DeviceTaintRules. A pure function of the pod's claims, the slices
// and the rules decides when to delete a pod ([view] in eviction.go). A rule's status shows how many pods it has evicted and has still to
// evict, or would evict if its effect were not None (status.go); the controller writes it every ten seconds at most.
package devicetaint

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	listers "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/resourceclaim"
	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

const name = "device-taint-eviction-controller"

// Controller describes the loop.
func Controller() controllers.Controller {
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	v1 := resourcev1.SchemeGroupVersion
	return controllers.Controller{
		Name:    name,
		Account: "device-taint-eviction-controller",
		Inputs: []schema.GroupVersionResource{pods, v1.WithResource("resourceclaims"), v1.WithResource("resourceslices"),
			v1.WithResource("devicetaintrules")},
		Outputs: []schema.GroupVersionResource{pods, v1.WithResource("devicetaintrules")},
		Syncs:   &controllers.Syncs{Flag: "concurrent-device-taint-eviction-syncs", Default: 8},
		New:     build,
	}
}

// Names of the indexes: pods by the claims that they use, slices by their pools.
const byClaim, byPool = "deviceClaim", "pool"

// key names a pod or a rule.
type key struct {
	rule bool
	types.NamespacedName
}

type controller struct {
	client   kubernetes.Interface
	recorder record.EventRecorder
	clock    clock.PassiveClock
	pods     corelisters.PodLister
	podIndex cache.Indexer
	claims   listers.ResourceClaimLister
	slices   cache.Indexer
	rules    listers.DeviceTaintRuleLister
	queue    *controllers.Queue[key]
	gone     prometheus.Counter
	delay    prometheus.Histogram

	mu      sync.Mutex
	due     map[types.NamespacedName]types.UID // pods to evict at some time
	deleted map[types.NamespacedName]types.UID // evicted pods that the cache still shows
	evicted map[types.UID]int                  // the number of evicted pods by rule
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	pods, v1 := d.Informers.Core().V1().Pods(), d.Informers.Resource().V1()
	claims, published, rules := v1.ResourceClaims(), v1.ResourceSlices(), v1.DeviceTaintRules()
	c := &controller{
		client: d.Client, recorder: d.Recorder, clock: d.Clock, pods: pods.Lister(), podIndex: pods.Informer().GetIndexer(),
		claims: claims.Lister(), slices: published.Informer().GetIndexer(), rules: rules.Lister(),
		queue: controllers.NewQueue[key](d, "device-taint-eviction-controller", d.Syncs()),
		due:   map[types.NamespacedName]types.UID{}, deleted: map[types.NamespacedName]types.UID{}, evicted: map[types.UID]int{},
	}
	wakeRule := func(rule *resourcev1.DeviceTaintRule) {
		c.queue.Add(key{true, controllers.Key(rule)})
		c.wakeUsers(func(r *resourcev1.DeviceRequestAllocationResult) bool {
			return selects(rule, r.Driver, r.Pool, r.Device)
		})
	}
	var err error
	const subsystem = "device_taint_eviction_controller"
	c.gone = controllers.Keep(d.Metrics, &err, prometheus.NewCounter(prometheus.CounterOpts{
		Subsystem: subsystem, Name: "pod_deletions_total", Help: "Pods that were deleted because of tainted devices.",
	}))
	c.delay = controllers.Keep(d.Metrics, &err, prometheus.NewHistogram(prometheus.HistogramOpts{
		Subsystem: subsystem, Name: "pod_deletion_duration_seconds", Help: "From when a pod has to go to its deletion.",
		Buckets: []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30, 60, 120, 180, 240},
	}))
	err = errors.Join(err,
		controllers.Index(pods.Informer(), byClaim, func(obj any) ([]string, error) {
			if pod, ok := obj.(*corev1.Pod); ok {
				return resourceclaim.Used(pod), nil
			}
			return nil, nil
		}),
		controllers.Index(published.Informer(), byPool, func(obj any) ([]string, error) {
			if s, ok := obj.(*resourcev1.ResourceSlice); ok {
				return []string{s.Spec.Driver + "/" + s.Spec.Pool.Name}, nil
			}
			return nil, nil
		}),
		controllers.Subscribe(d, pods.Informer(), controllers.OnAny(func(pod *corev1.Pod) {
			if len(pod.Spec.ResourceClaims) > 0 && pod.Spec.NodeName != "" {
				c.queue.Add(key{false, controllers.Key(pod)})
			}
		})),
		controllers.Subscribe(d, claims.Informer(), controllers.OnAny(c.wakePods)),
		controllers.Subscribe(d, published.Informer(), controllers.OnAny(func(s *resourcev1.ResourceSlice) {
			c.wakeUsers(func(r *resourcev1.DeviceRequestAllocationResult) bool {
				return r.Driver == s.Spec.Driver && r.Pool == s.Spec.Pool.Name
			})
		})),
		controllers.Subscribe(d, rules.Informer(), controllers.Handler[*resourcev1.DeviceTaintRule]{
			Add: wakeRule, Delete: wakeRule,
			Update: func(before, updated *resourcev1.DeviceTaintRule) {
				if before.UID != updated.UID || before.Generation != updated.Generation {
					wakeRule(before)
					wakeRule(updated)
				}
			},
		}),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error { return c.queue.Run(ctx, c.sync) }), err
}

// wakeUsers enqueues the pods that use devices for which of returns true.
func (c *controller) wakeUsers(of func(*resourcev1.DeviceRequestAllocationResult) bool) {
	all, err := c.claims.List(labels.Everything())
	if err != nil {
		return // a lister returns no error
	}
	for _, claim := range all {
		if claim.Status.Allocation == nil {
			continue
		}
		for i := range claim.Status.Allocation.Devices.Results {
			if of(&claim.Status.Allocation.Devices.Results[i]) {
				c.wakePods(claim)
				break
			}
		}
	}
}

func (c *controller) wakePods(claim *resourcev1.ResourceClaim) {
	found, err := c.podIndex.ByIndex(byClaim, claim.Namespace+"/"+claim.Name)
	if err != nil {
		return // the index exists
	}
	for _, obj := range found {
		if pod, ok := obj.(*corev1.Pod); ok {
			c.queue.Add(key{false, controllers.Key(pod)})
		}
	}
}

func (c *controller) sync(ctx context.Context, k key) error {
	if k.rule {
		return c.syncRule(ctx, k.Name)
	}
	return c.syncPod(ctx, k)
}

// view returns what the caches show now.
func (c *controller) view() (view, error) {
	rules, err := c.rules.List(labels.Everything())
	if err != nil {
		return view{}, fmt.Errorf("list rules: %w", err)
	}
	return view{
		rules: rules,
		claim: func(namespace, name string) *resourcev1.ResourceClaim {
			claim, err := c.claims.ResourceClaims(namespace).Get(name)
			if err != nil {
				return nil
			}
			return claim
		},
		pool: func(driver, pool string) []*resourcev1.ResourceSlice {
			objects, err := c.slices.ByIndex(byPool, driver+"/"+pool)
			if err != nil {
				return nil // the index exists
			}
			var found []*resourcev1.ResourceSlice
			for _, obj := range objects {
				if s, ok := obj.(*resourcev1.ResourceSlice); ok {
					found = append(found, s)
				}
			}
			return found
		},
	}, nil
}

func (c *controller) syncPod(ctx context.Context, k key) error {
	pod, err := c.pods.Pods(k.Namespace).Get(k.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("get pod: %w", err)
	}
	if err != nil || pod.DeletionTimestamp != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.due, k.NamespacedName)
		if err != nil {
			delete(c.deleted, k.NamespacedName)
		}
		return nil
	}
	c.mu.Lock()
	over := c.deleted[k.NamespacedName] == pod.UID
	c.mu.Unlock()
	if over {
		return nil
	}
	v, err := c.view()
	if err != nil {
		return err
	}
	at, by := v.eviction(pod)
	c.mu.Lock()
	was, known := c.due[k.NamespacedName]
	known = known && was == pod.UID
	if at.IsZero() {
		delete(c.due, k.NamespacedName)
	} else {
		c.due[k.NamespacedName] = pod.UID
	}
	c.mu.Unlock()
	if known == at.IsZero() {
		// The pod became due for eviction, or no longer is: its rules' status changes.
		for _, rule := range by {
			c.queue.Add(key{true, controllers.Key(rule)})
		}
	}
	switch left := at.Sub(c.clock.Now()); {
	case at.IsZero() && known:
		c.tell(pod, "Cancelling deletion")
		return nil
	case at.IsZero():
		return nil
	case left > 0:
		c.queue.AddAfter(k, left)
		return nil
	}
	return c.evict(ctx, pod, at, by)
}

func (c *controller) tell(pod *corev1.Pod, what string) {
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	c.recorder.Event(ref, corev1.EventTypeNormal, "DeviceTaintManagerEviction", what)
}

func (c *controller) evict(ctx context.Context, pod *corev1.Pod, at time.Time, by []*resourcev1.DeviceTaintRule) error {
	api := c.client.CoreV1().Pods(pod.Namespace)
	c.tell(pod, "Marking for deletion")
	patch, err := workload.Disrupted(pod, "DeletionByDeviceTaintManager", "Device Taint manager: deleting due to NoExecute taint", 0,
		c.clock.Now())
	if err == nil && patch != nil {
		_, err = api.Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err == nil {
		err = api.Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	}
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil // it was deleted by another client
	case err != nil:
		return fmt.Errorf("evict pod: %w", err)
	}
	c.gone.Inc()
	c.delay.Observe(c.clock.Since(at).Seconds())
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.due, controllers.Key(pod))
	c.deleted[controllers.Key(pod)] = pod.UID
	for _, rule := range by {
		c.evicted[rule.UID]++
		c.queue.AddAfter(key{true, controllers.Key(rule)}, statusPeriod)
	}
	return nil
}

// statusPeriod is the shortest time between two writes of a rule's status.
const statusPeriod = 10 * time.Second
