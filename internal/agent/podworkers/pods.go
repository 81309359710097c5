// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podworkers

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

// podTable is the node's pods, each with its worker.
type podTable struct {
	clock  clock.WithTicker
	logger *slog.Logger

	mu      sync.Mutex // guards also the entry of each worker
	workers map[types.UID]*worker
	new     []*worker     // not running yet
	begun   chan struct{} // there are such
	synced  bool          // the pods that the API server has for the node are known
	killed  chan struct{} // closed when a pod that the node ends has ended, and made anew
}

func newPodTable(c clock.WithTicker, logger *slog.Logger) *podTable {
	return &podTable{clock: c, logger: logger, workers: map[types.UID]*worker{}, begun: make(chan struct{}, 1), killed: make(chan struct{})}
}

// takeNew takes the workers that do not run yet.
func (t *podTable) takeNew() []*worker {
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := t.new
	t.new = nil
	return taken
}

// AdmittedPods are the pods that run or are about to.
func (t *podTable) AdmittedPods() []*corev1.Pod {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*corev1.Pod
	for _, w := range t.workers {
		if w.counted && w.spec != nil && !w.gone {
			out = append(out, w.spec)
		}
	}
	return out
}

// ActivePods are the pods that run, or are about to, and that are not being ended yet, the oldest first.
func (t *podTable) ActivePods() []*corev1.Pod {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*corev1.Pod
	for _, w := range t.workers {
		if w.counted && w.spec != nil && !w.gone && w.evicted == nil && w.spec.DeletionTimestamp == nil {
			out = append(out, w.spec)
		}
	}
	slices.SortFunc(out, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return out
}

// Spec is a pod's newest definition; nil: the node has no such pod.
func (t *podTable) Spec(uid types.UID) *corev1.Pod {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.workers[uid]; w != nil {
		return w.spec
	}
	return nil
}

// StaticPods are the static pods that have a worker.
func (t *podTable) StaticPods() []*corev1.Pod {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*corev1.Pod
	for _, w := range t.workers {
		if w.spec != nil && podspec.IsStatic(w.spec) {
			out = append(out, w.spec)
		}
	}
	return out
}

// CountPod takes the pod's requests from the node, until the pod has ended.
func (t *podTable) CountPod(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.workers[uid]; w != nil {
		w.counted = true
	}
}

// CountedPods are the pods whose requests are taken from the node.
func (t *podTable) CountedPods() []*corev1.Pod {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*corev1.Pod
	for _, w := range t.workers {
		if w.counted && w.spec != nil {
			out = append(out, w.spec)
		}
	}
	return out
}

// Known are the pods that have a worker, and whether they are all that there are.
func (m *Manager) Known() (pods map[types.UID]bool, all bool) {
	all = m.sourcesRead()
	m.mu.Lock()
	defer m.mu.Unlock()
	pods = map[types.UID]bool{}
	for uid := range m.workers {
		pods[uid] = true
	}
	return pods, all
}

// Over says of each pod with a worker whether it has ended for good.
func (t *podTable) Over() map[types.UID]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	over := map[types.UID]bool{}
	for uid, w := range t.workers {
		over[uid] = w.status != nil && !w.counted && (w.status.Phase == corev1.PodSucceeded || w.status.Phase == corev1.PodFailed)
	}
	return over
}

// Relisted makes the pod's worker look, unless its last round has seen just the sum; a pod that has none gets one, if the pods of the API
// server are known.
func (m *Manager) Relisted(pod types.UID, sum uint64) bool {
	m.mu.Lock()
	w := m.workers[pod]
	if w == nil && m.synced {
		w = m.workerOf(pod)
	}
	m.mu.Unlock()
	if w == nil {
		return false
	}
	if w.seen.Load() != sum {
		w.wake()
	}
	return true
}

// SetSynced takes that the pods which the API server has for the node are known.
func (t *podTable) SetSynced() {
	t.mu.Lock()
	t.synced = true
	t.mu.Unlock()
	t.WakeAll()
}

// WakeAll makes all workers look.
func (t *podTable) WakeAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.workers {
		w.wake()
	}
}

// Synced reports whether the pods that the API server has for the node are known.
func (t *podTable) Synced() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.synced
}

// sourcesRead reports whether all sources of pods have spoken: only then is a pod that none of them has an orphan.
func (m *Manager) sourcesRead() bool { return m.Synced() && m.Static.SourcesRead() }

// WakeNamed wakes the workers of the name.
func (t *podTable) WakeNamed(name types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.workers {
		if w.spec != nil && podspec.Name(w.spec) == name {
			w.wake()
		}
	}
}

// nameTaken says whether another pod of the name has not ended yet: the one before a static pod's manifest was changed.
func (t *podTable) nameTaken(w *worker, pod *corev1.Pod) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, other := range t.workers {
		if other != w && other.spec != nil && other.gone && podspec.Name(other.spec) == podspec.Name(pod) {
			return true
		}
	}
	return false
}

// verdict is a pod's end that the node has decided on from outside of its worker.
type verdict struct {
	podspec.End
	at time.Time
}

// KillPod makes the pod's worker end it, unless it is ended already.
func (t *podTable) KillPod(uid types.UID, end podspec.End) {
	t.mu.Lock()
	w := t.workers[uid]
	if w == nil || w.evicted != nil {
		t.mu.Unlock()
		return
	}
	w.evicted = &verdict{end, t.clock.Now()}
	cancel := w.cancel
	t.mu.Unlock()
	if cancel != nil {
		cancel() // what is being done for it is moot
	}
	w.wake()
}

// Killing reports whether a pod that was killed within the time is still there.
func (t *podTable) Killing(within time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.workers {
		if w.evicted != nil && w.counted && !w.gone && t.clock.Since(w.evicted.at) < within {
			return true
		}
	}
	return false
}

// Alive reports whether the pod has not ended yet.
func (t *podTable) Alive(uid types.UID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.workers[uid]
	return w != nil && w.counted
}

// AwaitEnd waits until the pods have ended, for no longer than the longest grace of them and half of it again, or ten seconds.
func (t *podTable) AwaitEnd(ctx context.Context, pods []*corev1.Pod) error {
	most := 10 * time.Second
	for _, pod := range pods {
		most = max(most, time.Duration(podspec.Grace(pod))*time.Second*3/2)
	}
	timer := t.clock.NewTimer(most)
	defer timer.Stop()
	for {
		next := t.Killed()
		if !slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return t.Alive(pod.UID) }) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C():
			t.logger.Warn("Preempted pods have not ended in time", "pods", len(pods))
			return nil
		case <-next:
		}
	}
}

// ease says that a pod that the node ends has ended.
func (t *podTable) ease() {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.killed)
	t.killed = make(chan struct{})
}

// Killed is closed with the next such end.
func (t *podTable) Killed() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.killed
}

// Pods are the pods with the newest status that the node has made of each. They belong to the caller.
func (t *podTable) Pods() []*corev1.Pod {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*corev1.Pod
	for _, w := range t.workers {
		if w.spec == nil || w.gone {
			continue
		}
		pod := w.spec.DeepCopy()
		if w.status != nil {
			w.status.DeepCopyInto(&pod.Status)
		}
		out = append(out, pod)
	}
	return out
}

// FindPod is the pod that a target names.
func (m *Manager) FindPod(t podspec.Target) (*corev1.Pod, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.workers {
		if p := w.spec; p != nil && !w.gone && p.Namespace == t.Namespace && p.Name == t.Pod &&
			(t.UID == "" || t.UID == p.UID || m.Mirrors.IsMirror(p, t.UID)) {
			return p, nil
		}
	}
	return nil, apierrors.NewNotFound(corev1.Resource("pods"), t.Pod)
}

// Status is the newest status that the node has made of the pod; nil: none. It must not be changed.
func (t *podTable) Status(pod types.UID) *corev1.PodStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.workers[pod]; w != nil {
		return w.status
	}
	return nil
}
