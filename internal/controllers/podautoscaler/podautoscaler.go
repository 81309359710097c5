// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podautoscaler keeps the replicas of workloads at what HorizontalPodAutoscalers ask for. Each autoscaler is evaluated when it
// comes, when its spec changes, when the usage of its pods changes so that the result may be another one (watch.go), and a sync period
// after its last evaluation; there is no sweep over all.
//
// An evaluation reads the scale of the target (any kind that has the subresource), then the metrics, and has the package calculator
// decide. The metrics are read beside the queue's workers: a metrics server that hangs holds up the autoscalers that use it, each until
// its own question is given up, and no others.
//
// What an autoscaler recommended before is in memory only, as upstream's: a controller that begins anew recommends what it finds.
package podautoscaler

import (
	"context"
	"errors"
	"sync"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	autoscalinglisters "k8s.io/client-go/listers/autoscaling/v2"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/podautoscaler/calculator"
	"github.com/mortise-dev/mortise/internal/controllers/scalinglog"
	"github.com/mortise-dev/mortise/internal/objectversion"
)

// autoscalers are what the loop is about.
var autoscalers = autoscalingv2.SchemeGroupVersion.WithResource("horizontalpodautoscalers")

// Controller describes the loop.
func Controller() controllers.Controller {
	s := defaults()
	return controllers.Controller{
		Name: "horizontal-pod-autoscaler-controller", Account: "horizontal-pod-autoscaler", Component: "horizontal-pod-autoscaler",
		Inputs:   []schema.GroupVersionResource{autoscalers, corev1.SchemeGroupVersion.WithResource("pods")},
		Outputs:  []schema.GroupVersionResource{autoscalers},
		Syncs:    &controllers.Syncs{Flag: "concurrent-horizontal-pod-autoscaler-syncs", Default: 5},
		Settings: s.declare(),
		Check:    func(*controllers.Cluster) error { return s.check() },
		New:      func(d *controllers.Deps) (controllers.Runner, error) { return build(d, *s) },
	}
}

type controller struct {
	client   kubernetes.Interface
	dynamic  dynamic.Interface
	mapper   meta.RESTMapper
	recorder record.EventRecorder
	clock    clock.PassiveClock
	settings settings
	meters   *meters
	sources  *sources
	log      *scalinglog.Log
	usage    controllers.PodUsage // nil: changes of usage are not told
	scales   controllers.Scales   // nil: all are asked for

	hpas  autoscalinglisters.HorizontalPodAutoscalerLister
	pods  *podsByLabel
	queue *controllers.Queue[types.NamespacedName]

	selectors calculator.Selectors
	mu        sync.Mutex
	states    map[types.NamespacedName]*state
	reading   sync.WaitGroup // questions to metrics servers
}

// state is what the controller keeps of an autoscaler. Only the worker that has its key uses it, but for what mu of the controller guards.
type state struct {
	uid     types.UID
	history calculator.History
	wrote   string // the resource version of the last status that was written; empty: none
	watched bool   // for a change of the usage of its pods

	asking bool        // guarded by mu: the metrics are being read
	answer *evaluation // guarded by mu: they have been
}

// evaluation is one evaluation of an autoscaler, in which the metrics have still to be looked at.
type evaluation struct {
	began    time.Time
	hpa      *autoscalingv2.HorizontalPodAutoscaler
	decision *calculator.Decision
	scale    scaleOf
	selector labels.Selector
	pods     []*corev1.Pod // that it selects; nil: not known, as while the metrics are asked for
	readings []reading
}

func build(d *controllers.Deps, s settings) (controllers.Runner, error) {
	hpas, pods := d.Informers.Autoscaling().V2().HorizontalPodAutoscalers(), d.Informers.Core().V1().Pods()
	m, err := newMeters(d)
	if err != nil {
		return nil, err
	}
	c := &controller{
		client: d.Client, dynamic: d.Dynamic, mapper: d.RESTMapper, recorder: d.Recorder, clock: d.Clock, settings: s, meters: m,
		hpas: hpas.Lister(), pods: &podsByLabel{lister: pods.Lister()},
		queue: controllers.NewQueue[types.NamespacedName](d, "horizontalpodautoscaler", d.Syncs()),
		sources: &sources{
			client: d.Discovery.RESTClient(), mapper: d.RESTMapper, clock: d.Clock, period: s.period, direct: d.Scaling.Usage,
		},
		log: d.Scaling.Log, usage: d.Scaling.Usage, scales: d.Scaling.Scales, states: map[types.NamespacedName]*state{},
	}
	podEvents := controllers.Handler[*corev1.Pod]{Add: c.pods.come, Update: c.pods.change, Delete: c.pods.gone}
	if err := controllers.Subscribe(d, pods.Informer(), podEvents); err != nil {
		return nil, err
	}
	err = controllers.Subscribe(d, hpas.Informer(), controllers.Handler[*autoscalingv2.HorizontalPodAutoscaler]{
		Add: c.come,
		Update: func(before, now *autoscalingv2.HorizontalPodAutoscaler) {
			if before.Generation != now.Generation || before.UID != now.UID { // its status is the controller's own
				c.come(now)
			}
		},
		Delete: c.gone,
	})
	return controllers.RunnerFunc(func(ctx context.Context) error {
		defer c.unwatchAll()
		defer c.reading.Wait()
		return c.queue.Run(ctx, c.sync)
	}), err
}

func (c *controller) come(hpa *autoscalingv2.HorizontalPodAutoscaler) {
	if c.selectors.Add(hpa.Namespace, hpa.Name) {
		c.meters.autoscalers.Inc()
	}
	c.queue.Add(controllers.Key(hpa))
}

func (c *controller) gone(hpa *autoscalingv2.HorizontalPodAutoscaler) {
	c.selectors.Remove(hpa.Namespace, hpa.Name)
	c.meters.autoscalers.Dec()
	c.meters.desired.DeleteLabelValues(hpa.Namespace, hpa.Name)
	c.log.Remove(controllers.Key(hpa))
	c.queue.Add(controllers.Key(hpa))
}

// sync evaluates an autoscaler: as far as the metrics, or on from there.
func (c *controller) sync(ctx context.Context, key types.NamespacedName) error {
	hpa, err := c.hpas.HorizontalPodAutoscalers(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if s := c.states[key]; s != nil {
			c.unwatch(key, s)
			delete(c.states, key)
		}
		return nil
	} else if err != nil {
		return err
	}
	c.mu.Lock()
	s := c.states[key]
	if s == nil || s.uid != hpa.UID {
		s = &state{uid: hpa.UID, watched: s != nil && s.watched}
		c.states[key] = s
	}
	e := s.answer
	asking := s.asking
	s.answer = nil
	c.mu.Unlock()
	switch {
	case asking:
		return nil // the answer brings the key back
	case e != nil && e.hpa.Generation == hpa.Generation:
		c.decide(key, s, e)
	default:
		if objectversion.Less(hpa.ResourceVersion, s.wrote) {
			c.meters.stale.WithLabelValues(autoscalers.Group, autoscalers.Resource).Inc()
			return controllers.Behind(autoscalers.GroupResource(), key.Name, "the cache has not seen the last status")
		}
		switch e = c.begin(ctx, hpa, s); {
		case e.selector == nil:
			c.unwatch(key, s)
		case c.sources.know(ctx, e):
			c.decide(key, s, e)
		default:
			c.ask(ctx, key, s, e)
			return nil
		}
	}
	c.finish(ctx, key, s, e)
	return nil
}

// begin reads the scale. The evaluation has a selector where the metrics have to be read.
func (c *controller) begin(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler, s *state) *evaluation {
	now := c.clock.Now()
	e := &evaluation{began: now, hpa: hpa, decision: calculator.Begin(hpa, c.settings.Settings, &s.history, now)}
	var found bool
	if e.scale, found = c.find(ctx, hpa, e.decision); !found || !e.decision.NeedsMetrics() {
		return e
	}
	selector, ok := e.decision.Selector()
	if !ok {
		return e
	}
	if !c.selectors.Set(hpa.Namespace, hpa.Name, selector) {
		e.decision.Deleted()
		return e
	}
	pods, err := c.pods.list(hpa.Namespace, selector)
	if err != nil {
		return e // a cache's list has none
	}
	if several := c.selectors.Matching(hpa.Namespace, pods); len(several) > 1 {
		e.decision.Ambiguous(several)
		return e
	}
	e.selector, e.pods = selector, pods
	return e
}

// ask reads the metrics beside the worker, and brings the key back.
func (c *controller) ask(ctx context.Context, key types.NamespacedName, s *state, e *evaluation) {
	e.pods = nil
	c.mu.Lock()
	s.asking = true
	c.mu.Unlock()
	c.reading.Go(func() {
		e.readings = c.sources.read(ctx, e)
		c.mu.Lock()
		s.asking, s.answer = false, e
		c.mu.Unlock()
		c.queue.Add(key)
	})
}

// decide has the metrics decide.
func (c *controller) decide(key types.NamespacedName, s *state, e *evaluation) {
	pods := e.pods
	if pods == nil {
		var err error
		if pods, err = c.pods.list(e.hpa.Namespace, e.selector); err != nil {
			return // a cache's list has none
		}
	}
	responses := make([]calculator.Response, len(e.readings))
	for i := range e.readings {
		responses[i] = e.readings[i].response
	}
	e.decision.Decide(pods, responses)
	c.meters.computed(e.hpa, e.decision.Estimates, e.readings)
	c.watch(key, s, e, pods)
}

// finish does what was decided, and writes what came of it.
func (c *controller) finish(ctx context.Context, key types.NamespacedName, s *state, e *evaluation) {
	defer c.queue.AddAfter(key, c.settings.period)
	d, did := e.decision, "none"
	if d.Rescale {
		err := rescale(ctx, c.dynamic, e.scale, d.Desired)
		if err != nil && ctx.Err() != nil {
			return // the next incarnation finds what came of it
		}
		if d.Rescaled(err); err == nil {
			did = action(e.scale.read().Replicas, d.Desired)
		}
	}
	for _, event := range d.Events {
		c.recorder.Event(e.hpa, event.Type, event.Reason, event.Message)
	}
	if d.Made {
		c.meters.desired.WithLabelValues(key.Namespace, key.Name).Set(float64(d.Desired))
	}
	c.record(key, e)
	err := errors.Join(c.write(ctx, s, e.hpa, d.Status()), d.Err)
	c.meters.evaluated(did, err, c.clock.Since(e.began))
}

// write makes status the autoscaler's, unless it is that already.
func (c *controller) write(ctx context.Context, s *state, hpa *autoscalingv2.HorizontalPodAutoscaler,
	status *autoscalingv2.HorizontalPodAutoscalerStatus) error {
	if equality.Semantic.DeepEqual(&hpa.Status, status) {
		return nil
	}
	changed := *hpa
	changed.Status = *status
	written, err := c.client.AutoscalingV2().HorizontalPodAutoscalers(hpa.Namespace).UpdateStatus(ctx, &changed, metav1.UpdateOptions{})
	if err != nil {
		if ctx.Err() == nil && !apierrors.IsNotFound(err) {
			c.recorder.Event(hpa, corev1.EventTypeWarning, "FailedUpdateStatus", err.Error())
		}
		return err
	}
	s.wrote = written.ResourceVersion
	return nil
}
