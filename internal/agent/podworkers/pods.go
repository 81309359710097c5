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

// podTable holds the node's pods, each with its worker.
type podTable struct {
	clock  clock.WithTicker
	logger *slog.Logger

	mu      sync.Mutex // also guards the entry of each worker
	workers map[types.UID]*worker
	new     []*worker     // whose goroutines have not started
	begun   chan struct{} // signals that new is not empty
	synced  bool          // the node has listed its pods from the API server
	killed  chan struct{} // closed, and made anew, when a pod that the node killed has ended
	changes chan struct{} // closed when a pod or its status changes; nil: nothing waits for that
}

func newPodTable(c clock.WithTicker, logger *slog.Logger) *podTable {
	return &podTable{clock: c, logger: logger, workers: map[types.UID]*worker{}, begun: make(chan struct{}, 1), killed: make(chan struct{})}
}

// takeNew removes and returns the workers that do not run yet.
func (t *podTable) takeNew() []*worker {
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := t.new
	t.new = nil
	return taken
}

// AdmittedPods returns the pods that run or are about to.
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

// ActivePods returns the pods that run or are about to, without those that are being ended, the oldest first.
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

// Spec returns a pod's newest definition, or nil if the node has no such pod.
func (t *podTable) Spec(uid types.UID) *corev1.Pod {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.workers[uid]; w != nil {
		return w.spec
	}
	return nil
}

// StaticPods returns the static pods that have a worker.
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

// CountPod counts the pod's requests against the node until the pod has ended.
func (t *podTable) CountPod(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.workers[uid]; w != nil {
		w.counted = true
	}
}

// CountedPods returns the pods whose requests count against the node.
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

// Known returns the pods that have a worker, and whether these are all.
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

// Over returns for each pod with a worker whether it has ended for good.
func (t *podTable) Over() map[types.UID]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	over := map[types.UID]bool{}
	for uid, w := range t.workers {
		over[uid] = w.status != nil && !w.counted && (w.status.Phase == corev1.PodSucceeded || w.status.Phase == corev1.PodFailed)
	}
	return over
}

// Relisted wakes the pod's worker, unless its last round saw the state with this checksum. A pod without a worker gets one once the node
// has listed its pods from the API server.
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

// SetSynced notes that the node has listed its pods from the API server.
func (t *podTable) SetSynced() {
	t.mu.Lock()
	t.synced = true
	t.mu.Unlock()
	t.WakeAll()
}

// WakeAll wakes all workers.
func (t *podTable) WakeAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.workers {
		w.wake()
	}
}

// Synced reports whether the node has listed its pods from the API server.
func (t *podTable) Synced() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.synced
}

// sourcesRead reports whether all sources of pods have been read. Only then is a pod an orphan if no source has it.
func (m *Manager) sourcesRead() bool { return m.Synced() && m.Static.SourcesRead() }

// WakeNamed wakes the workers of the pods with the name.
func (t *podTable) WakeNamed(name types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.workers {
		if w.spec != nil && podspec.Name(w.spec) == name {
			w.wake()
		}
	}
}

// nameTaken reports whether another pod with the name has not ended yet: the one before a static pod's manifest changed.
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

// verdict is the node's decision, made outside of the pod's worker, to end the pod.
type verdict struct {
	podspec.End
	at time.Time
}

// KillPod makes the pod's worker end the pod, unless it has ended.
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
		cancel() // the current round's work is obsolete
	}
	w.wake()
}

// Killing reports whether a pod that was killed within the given time is still there.
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

// AwaitEnd waits until the pods have ended, at most for 1.5 times their longest grace period or ten seconds.
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

// ease signals that a pod that the node killed has ended.
func (t *podTable) ease() {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.killed)
	t.killed = make(chan struct{})
}

// Killed returns a channel that is closed when the next killed pod has ended.
func (t *podTable) Killed() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.killed
}

// Changed returns a channel that is closed when a pod or its status has changed.
func (t *podTable) Changed() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.changes == nil {
		t.changes = make(chan struct{})
	}
	return t.changes
}

// noteChange tells those that wait for changes. The caller holds the lock.
func (t *podTable) noteChange() {
	if t.changes != nil {
		close(t.changes)
		t.changes = nil
	}
}

// Pods returns the pods with the newest status that the node has computed. The caller owns them.
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

// FindPod returns the pod of a target.
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

// Status returns the newest status that the node has computed of the pod, or nil. The caller must not change it.
func (t *podTable) Status(pod types.UID) *corev1.PodStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.workers[pod]; w != nil {
		return w.status
	}
	return nil
}
