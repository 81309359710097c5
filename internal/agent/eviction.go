// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"github.com/mortise-dev/mortise/internal/agent/evict"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/podstatus"
)

// How often is looked for what runs short, and how long an evicted pod is waited for before another one goes.
const (
	evictionPeriod = 10 * time.Second
	evictionWait   = 30 * time.Second
)

// pressure is what runs short. Its fields are guarded by node.mu.
type pressure struct {
	conditions []corev1.NodeConditionType
	eased      chan struct{} // closed when a pod that the node ends has ended, and made anew
}

// watchPressure looks for what runs short, and frees it: dead containers and images first, then pods, one at a time.
func (n *node) watchPressure(ctx context.Context) error {
	if len(n.resources.Thresholds) == 0 && !*n.Kubelet.LocalStorageCapacityIsolation {
		return nil
	}
	m := &evict.Manager{
		Thresholds: n.resources.Thresholds, Transition: n.Kubelet.EvictionPressureTransitionPeriod.Duration,
		MaxGrace: int64(n.Kubelet.EvictionMaxPodGracePeriod), ImageFS: n.imagesApart(ctx),
	}
	ticker := n.Clock.NewTicker(evictionPeriod)
	defer ticker.Stop()
	for {
		eased := n.easing()
		n.relieve(ctx, m)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		case <-eased:
		}
	}
}

// relieve looks once.
func (n *node) relieve(ctx context.Context, m *evict.Manager) {
	seen := n.Measure(ctx)
	step := m.Next(n.Clock.Now(), seen)
	n.mu.Lock()
	changed := !slices.Equal(n.pressure.conditions, step.Conditions)
	n.pressure.conditions = step.Conditions
	n.mu.Unlock()
	if changed {
		n.runtimeTrouble() // the heartbeat writes conditions
	}
	if n.evicting() {
		return // what it leaves is not measured yet, or all pods are being ended
	}
	if *n.Kubelet.LocalStorageCapacityIsolation {
		if over := m.OverLimit(n.usage(ctx, n.activePods(evict.Limited))); len(over) > 0 {
			for _, e := range over {
				n.evict(e)
			}
			return
		}
	}
	if step.Starved == nil {
		return
	}
	n.recorder.Eventf(n.reference(), corev1.EventTypeWarning, "EvictionThresholdMet", "Attempting to reclaim %s", step.Starved.Resource)
	if step.Starved.Disk {
		n.freeDisk(ctx)
		if m.Enough(n.Measure(ctx)) {
			return
		}
	}
	victims := m.Victims(step.Starved, n.usage(ctx, n.activePods(nil)))
	if len(victims) == 0 {
		n.Logger.Warn("the node runs short and has no pod to evict", "resource", step.Starved.Resource)
		return
	}
	n.evict(victims[0])
}

// freeDisk removes everything that nobody uses: dead containers of pods that are over, and images.
func (n *node) freeDisk(ctx context.Context) {
	if err := n.removeDead(ctx); err != nil && ctx.Err() == nil {
		n.Logger.Warn("remove dead containers", "err", err)
	}
	if err := n.images.DeleteUnused(ctx); err != nil && ctx.Err() == nil {
		n.Logger.Warn("collect images", "err", err)
	}
}

// AdmittedPods are the pods that run or are about to.
func (n *node) AdmittedPods() []*corev1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []*corev1.Pod
	for _, w := range n.workers {
		if w.counted && w.spec != nil && !w.gone {
			out = append(out, w.spec)
		}
	}
	return out
}

// reference is the node, for events.
func (n *node) reference() *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: n.NodeName, UID: types.UID(n.NodeName)}
}

// activePods are the pods that run, or are about to, and that are picked.
func (n *node) activePods(pick func(*corev1.Pod) bool) []*corev1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []*corev1.Pod
	for _, w := range n.workers {
		if w.counted && w.spec != nil && !w.gone && w.evicted == nil && w.spec.DeletionTimestamp == nil && (pick == nil || pick(w.spec)) {
			out = append(out, w.spec)
		}
	}
	slices.SortFunc(out, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return out
}

// evict ends a pod: its worker does it.
func (n *node) evict(e evict.Eviction) {
	n.Logger.Warn("pod is evicted", "pod", podspec.Describe(e.Pod), "why", e.Message)
	n.recorder.AnnotatedEventf(e.Pod, e.Annotations, corev1.EventTypeWarning, evict.Reason, "%s", e.Message)
	n.Metrics.evictions.WithLabelValues(string(e.Signal)).Inc()
	n.end(e.Pod.UID, &verdict{reason: evict.Reason, message: e.Message, grace: e.Grace, at: n.Clock.Now(), disrupted: e.Disrupted})
}

// verdict is a pod's end that the node has decided on from outside of its worker.
type verdict struct {
	reason, message string
	grace           int64
	at              time.Time
	disrupted       bool // the pod's condition DisruptionTarget says so
}

// end makes the pod's worker end it, unless it is ended already.
func (n *node) end(uid types.UID, e *verdict) {
	n.mu.Lock()
	w := n.workers[uid]
	if w == nil || w.evicted != nil {
		n.mu.Unlock()
		return
	}
	w.evicted = e
	cancel := w.cancel
	n.mu.Unlock()
	if cancel != nil {
		cancel() // what is being done for it is moot
	}
	w.wake()
}

// evicting says whether a pod that was evicted a moment ago is still there.
func (n *node) evicting() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.leaving {
		return true
	}
	for _, w := range n.workers {
		if w.evicted != nil && w.counted && !w.gone && n.Clock.Since(w.evicted.at) < evictionWait {
			return true
		}
	}
	return false
}

// ease says that a pod that the node ends has ended.
func (n *node) ease() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.pressure.eased)
	n.pressure.eased = make(chan struct{})
}

// easing is closed with the next such end.
func (n *node) easing() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.pressure.eased
}

// bearable refuses a pod that would make what runs short shorter. Critical pods may come, and those that asked for memory where
// only memory is short.
func (n *node) bearable(pod *corev1.Pod) error {
	n.mu.Lock()
	conditions := slices.Clone(n.pressure.conditions)
	n.mu.Unlock()
	if len(conditions) == 0 || evict.Critical(pod) {
		return nil
	}
	if slices.Equal(conditions, []corev1.NodeConditionType{corev1.NodeMemoryPressure}) {
		taint := &corev1.Taint{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule}
		if podstatus.QOS(pod) != corev1.PodQOSBestEffort || corev1helpers.TolerationsTolerateTaint(klog.Logger{}, pod.Spec.Tolerations, taint, false) {
			return nil
		}
	}
	return &rejection{evict.Reason, fmt.Sprintf("The node had condition: %v. ", conditions)}
}
