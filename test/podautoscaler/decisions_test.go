// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/features"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/internal/controllers/podautoscaler/calculator"
)

var (
	worlds = flag.Int("worlds", 2000, "how many random worlds")
	first  = flag.Uint64("seed", 1, "the seed of the first")
)

// steps is how often something happens in a world. Events of more steps would be combined.
const steps = 8

// TestDecisions: what the calculator decides is what kube-controller-manager's controller decides, in each sync of each autoscaler: the
// scale that it writes, the whole status, the events.
func TestDecisions(t *testing.T) {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	utilruntime.ErrorHandlers = nil // they wait
	// The store of a fake client has no versions to compare.
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.StaleControllerConsistencyHPA, false)
	var next, syncs, rescales atomic.Int64
	t.Run("worlds", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("some", func(t *testing.T) {
				t.Parallel()
				for n := next.Add(1) - 1; n < int64(*worlds) && !t.Failed(); n = next.Add(1) - 1 {
					synctest.Test(t, func(t *testing.T) {
						w := newWorld(*first + uint64(n))
						w.live(t)
						syncs.Add(int64(w.syncs))
						rescales.Add(int64(w.rescales))
					})
				}
			})
		}
	})
	t.Logf("%d worlds, %d syncs, %d rescales", *worlds, syncs.Load(), rescales.Load())
	if syncs.Load() < int64(*worlds)*steps {
		t.Errorf("only %d syncs", syncs.Load())
	}
}

// world is a namespace with autoscalers, seen by the reference and by the calculator.
type world struct {
	dice      dice
	seed      uint64
	ref       *reference
	client    *fake.Clientset
	hpas      []*autoscalingv2.HorizontalPodAutoscaler // with the status that the calculator gave them
	histories []*calculator.History
	selectors calculator.Selectors
	said      map[string]int // events of an autoscaler so far

	syncs, rescales int
}

func newWorld(seed uint64) *world {
	w := &world{
		seed: seed, dice: newDice(seed), ref: &reference{events: map[string][]calculator.Event{}}, client: fake.NewSimpleClientset(),
		said: map[string]int{},
	}
	for i := range 1 + w.dice.IntN(3) {
		t := &target{number: i, known: w.dice.in(97), pods: map[string]*corev1.Pod{}, selector: fmt.Sprint("app=web-", i)}
		h := w.dice.autoscaler(t)
		t.replicas = w.dice.Int32N(h.Spec.MaxReplicas + 3)
		w.ref.targets = append(w.ref.targets, t)
		w.hpas = append(w.hpas, h)
		w.histories = append(w.histories, &calculator.History{})
		w.selectors.Add(namespace, h.Name)
	}
	return w
}

// live lets time pass.
func (w *world) live(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	for i, h := range w.hpas {
		w.dice.fill(w.ref.targets[i], time.Now(), 20*time.Minute)
		w.dice.measure(h, w.ref.targets[i], time.Now())
		w.check(t, w.client.Tracker().Add(h.DeepCopy()))
	}
	w.share(t)
	wait := w.ref.run(ctx, w.client, informers.NewSharedInformerFactory(w.client, 0))
	defer func() {
		cancel()
		wait()
		time.Sleep(time.Hour) // what is left of timers runs out
	}()
	for step := 0; step < steps && !t.Failed(); step++ {
		synctest.Wait()
		w.compare(t)
		time.Sleep(period / 2)
		synctest.Wait()
		w.compare(t)
		w.change(t)
		synctest.Wait()
		w.compare(t) // a changed spec is acted upon at once
		for range pick(w.dice, 1, 1, 1, 2, 8) {
			time.Sleep(period / 2)
			synctest.Wait()
			w.compare(t)
		}
	}
}

func (w *world) check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// change lets something happen to every target. Specs change last: the reference acts on them at once, and has to see the rest.
func (w *world) change(t *testing.T) {
	changed := w.changeTargets()
	w.share(t)
	synctest.Wait()
	for _, h := range changed {
		w.check(t, w.client.Tracker().Update(resourceOf("autoscaling", "v2", "horizontalpodautoscalers"), h.DeepCopy(), namespace))
	}
}

// changeTargets returns the autoscalers whose specs have changed.
func (w *world) changeTargets() (changed []*autoscalingv2.HorizontalPodAutoscaler) {
	w.ref.mu.Lock()
	defer w.ref.mu.Unlock()
	for i, h := range w.hpas {
		target := w.ref.targets[i]
		if w.dice.in(8) {
			target.replicas = w.dice.Int32N(h.Spec.MaxReplicas + 3) // another client scales
		}
		w.dice.fill(target, time.Now(), time.Minute)
		for _, name := range slices.Sorted(maps.Keys(target.pods)) {
			if w.dice.in(12) {
				pod := target.pods[name].DeepCopy()
				w.dice.happens(pod, time.Now())
				target.pods[name] = pod
			}
		}
		w.dice.measure(h, target, time.Now())
		target.unread, target.unset, target.selector = nil, nil, fmt.Sprint("app=web-", i)
		switch w.dice.IntN(40) {
		case 0:
			target.unread = errors.New("deployments.apps is not found")
		case 1, 2:
			target.unset = errors.New("the scale may not be written")
		case 3:
			target.selector = pick(w.dice, "", "app in (", "app=none")
		case 4:
			target.selector = "app=web-0"
		case 5, 6:
			h.Generation++
			h.Spec.MaxReplicas = 1 + w.dice.Int32N(20)
			w.dice.bounds(h)
			if h.Spec.MinReplicas == nil {
				h.Spec.MinReplicas = new(int32(1))
			}
			changed = append(changed, h)
		}
	}
	return changed
}

func resourceOf(group, version, name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: version, Resource: name}
}

// share makes the pods of the reference's client those of the targets.
func (w *world) share(t *testing.T) {
	pods := resourceOf("", "v1", "pods")
	list, err := w.client.Tracker().List(pods, corev1.SchemeGroupVersion.WithKind("Pod"), namespace)
	w.check(t, err)
	there := map[string]bool{}
	all := map[string]*corev1.Pod{}
	for _, target := range w.ref.targets {
		maps.Copy(all, target.pods)
	}
	for _, pod := range list.(*corev1.PodList).Items {
		if there[pod.Name] = all[pod.Name] != nil; !there[pod.Name] {
			w.check(t, w.client.Tracker().Delete(pods, namespace, pod.Name))
		} else if !equality.Semantic.DeepEqual(&pod, all[pod.Name]) {
			w.check(t, w.client.Tracker().Update(pods, all[pod.Name], namespace))
		}
	}
	for name, pod := range all {
		if !there[name] {
			w.check(t, w.client.Tracker().Add(pod))
		}
	}
}

// compare has the calculator make the decisions that the reference has made.
func (w *world) compare(t *testing.T) {
	syncs, events := w.ref.take()
	own := map[string][]calculator.Event{}
	for _, s := range syncs {
		h := w.hpas[s.number]
		var wrote *int32
		d := w.decide(s)
		if h.Status = *d.Status(); d.Made && d.Desired != w.ref.targets[s.number].replicas {
			wrote = &d.Desired
		}
		own[h.Name] = append(own[h.Name], d.Events...)
		w.syncs++
		if s.wrote != nil {
			w.rescales++
			w.ref.targets[s.number].replicas = *s.wrote
		}
		if (wrote == nil) != (s.wrote == nil) || wrote != nil && *wrote != *s.wrote {
			t.Errorf("seed %d, %v, %s: writes the scale %s, kube-controller-manager writes %s", w.seed, s.at, h.Name, number(wrote),
				number(s.wrote))
		}
	}
	for _, h := range w.hpas {
		obj, err := w.client.Tracker().Get(resourceOf("autoscaling", "v2", "horizontalpodautoscalers"), namespace, h.Name)
		w.check(t, err)
		want := obj.(*autoscalingv2.HorizontalPodAutoscaler).Status.DeepCopy()
		got := h.Status.DeepCopy()
		plain(want, got)
		if !equality.Semantic.DeepEqual(want, got) {
			t.Errorf("seed %d, %s: the status (-kube-controller-manager's +calculator's)\n%s", w.seed, h.Name, cmp.Diff(text(want), text(got)))
		}
		if w.said[h.Name] += len(events[h.Name]); w.said[h.Name] > 20 {
			continue // from 25 on they are dropped
		}
		if want, got := sorted(events[h.Name]), sorted(own[h.Name]); want != got {
			t.Errorf("seed %d, %s: the events are\n%s\nkube-controller-manager's are\n%s", w.seed, h.Name, got, want)
		}
	}
	if t.Failed() {
		t.Logf("again with -seed %d -worlds 1", w.seed)
		for i, h := range w.hpas {
			target := w.ref.targets[i]
			t.Logf("%sreplicas %d of %d, %d pods, selector %q", text(h.Spec), target.status, target.replicas, len(target.pods), target.selector)
		}
		t.FailNow()
	}
}

// decide makes the decision of one sync.
func (w *world) decide(s record) *calculator.Decision {
	h, target := w.hpas[s.number], w.ref.targets[s.number]
	d := calculator.Begin(h, settings, w.histories[s.number], s.at)
	switch {
	case !target.known:
		d.UnknownTarget(errUnknown)
		return d
	case target.unread != nil:
		d.NotFound(target.unread)
		return d
	}
	d.Found(calculator.Scale{Replicas: target.replicas, StatusReplicas: target.status, Selector: target.selector})
	if d.NeedsMetrics() {
		w.measure(d, h, target)
	}
	if d.Rescale {
		d.Rescaled(target.unset)
	}
	return d
}

func (w *world) measure(d *calculator.Decision, h *autoscalingv2.HorizontalPodAutoscaler, t *target) {
	selector, ok := d.Selector()
	if !ok {
		return
	}
	w.selectors.Set(namespace, h.Name, selector)
	var pods []*corev1.Pod
	for _, target := range w.ref.targets {
		for _, name := range slices.Sorted(maps.Keys(target.pods)) {
			if selector.Matches(labels.Set(target.pods[name].Labels)) {
				pods = append(pods, target.pods[name])
			}
		}
	}
	if several := w.selectors.Matching(namespace, pods); len(several) > 1 {
		d.Ambiguous(several)
		return
	}
	d.Decide(pods, responses(h, t))
}

var (
	// The reference lists pods and autoscalers in no order, so that any pod may be the first that lacks a request.
	lacks = regexp.MustCompile(`(missing (pod-level )?request for \S+|container \S+ not found) .*Pod \S+`)
	pairs = regexp.MustCompile(`\(e\.g\. \[.*?\]\)`)
)

// words are a message without what depends on the order of lists, and on how many events there were before.
func words(message string) string {
	message = strings.TrimPrefix(message, "(combined from similar events): ")
	return pairs.ReplaceAllString(lacks.ReplaceAllString(message, "a request is missing"), "(e.g. some)")
}

// plain takes from two statuses what is not defined: words that depend on an order, and the average over no pods.
func plain(want, got *autoscalingv2.HorizontalPodAutoscalerStatus) {
	for _, s := range []*autoscalingv2.HorizontalPodAutoscalerStatus{want, got} {
		for i := range s.Conditions {
			s.Conditions[i].Message = words(s.Conditions[i].Message)
		}
	}
	for i := range min(len(want.CurrentMetrics), len(got.CurrentMetrics)) {
		w, g := valueOf(&want.CurrentMetrics[i]), valueOf(&got.CurrentMetrics[i])
		if w != nil && g != nil && w.AverageValue != nil && w.AverageValue.MilliValue() == math.MinInt64 {
			w.AverageValue, g.AverageValue = nil, nil
		}
	}
}

func valueOf(m *autoscalingv2.MetricStatus) *autoscalingv2.MetricValueStatus {
	switch {
	case m.Object != nil:
		return &m.Object.Current
	case m.External != nil:
		return &m.External.Current
	}
	return nil
}

func sorted(events []calculator.Event) string {
	var lines []string
	for _, e := range events {
		lines = append(lines, fmt.Sprintf("%s %s: %s", e.Type, e.Reason, words(e.Message)))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func number(n *int32) string {
	if n == nil {
		return "nothing"
	}
	return fmt.Sprint(*n)
}

func text(v any) string {
	data, err := yaml.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(data)
}
