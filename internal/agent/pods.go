// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

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

// ActivePods are the pods that run, or are about to, and that nobody ends yet, the oldest first.
func (n *node) ActivePods() []*corev1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []*corev1.Pod
	for _, w := range n.workers {
		if w.counted && w.spec != nil && !w.gone && w.evicted == nil && w.spec.DeletionTimestamp == nil {
			out = append(out, w.spec)
		}
	}
	slices.SortFunc(out, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return out
}

// Spec is a pod's newest definition; nil: the node has no such pod.
func (n *node) Spec(uid types.UID) *corev1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	if w := n.workers[uid]; w != nil {
		return w.spec
	}
	return nil
}

// StaticPods are the static pods that have a worker.
func (n *node) StaticPods() []*corev1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []*corev1.Pod
	for _, w := range n.workers {
		if w.spec != nil && podspec.IsStatic(w.spec) {
			out = append(out, w.spec)
		}
	}
	return out
}

// CountPod takes the pod's requests from the node, until the pod has ended.
func (n *node) CountPod(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if w := n.workers[uid]; w != nil {
		w.counted = true
	}
}

// CountedPods are the pods whose requests are taken from the node.
func (n *node) CountedPods() []*corev1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []*corev1.Pod
	for _, w := range n.workers {
		if w.counted && w.spec != nil {
			out = append(out, w.spec)
		}
	}
	return out
}

// Known are the pods that have a worker, and whether they are all that there are.
func (n *node) Known() (pods map[types.UID]bool, all bool) {
	all = n.sourcesRead()
	n.mu.Lock()
	defer n.mu.Unlock()
	pods = map[types.UID]bool{}
	for uid := range n.workers {
		pods[uid] = true
	}
	return pods, all
}

// Over says of each pod with a worker whether it has ended for good.
func (n *node) Over() map[types.UID]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	over := map[types.UID]bool{}
	for uid, w := range n.workers {
		over[uid] = w.status != nil && !w.counted && (w.status.Phase == corev1.PodSucceeded || w.status.Phase == corev1.PodFailed)
	}
	return over
}

// Relisted makes the pod's worker look, unless its last round has seen just the sum; a pod that has none gets one, if the pods of the API
// server are known.
func (n *node) Relisted(pod types.UID, sum uint64) bool {
	n.mu.Lock()
	w := n.workers[pod]
	if w == nil && n.synced {
		w = n.workerOf(pod)
	}
	n.mu.Unlock()
	if w == nil {
		return false
	}
	if w.seen.Load() != sum {
		w.wake()
	}
	return true
}

// Synced reports whether the pods that the API server has for the node are known.
func (n *node) Synced() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.synced
}

// sourcesRead reports whether all sources of pods have spoken: only then is a pod that nobody knows an orphan.
func (n *node) sourcesRead() bool { return n.Synced() && n.static.SourcesRead() }

// WakeNamed wakes the workers of the name.
func (n *node) WakeNamed(name types.NamespacedName) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range n.workers {
		if w.spec != nil && podspec.Name(w.spec) == name {
			w.wake()
		}
	}
}

// nameTaken says whether another pod of the name has not ended yet: the one before a static pod's manifest was changed.
func (n *node) nameTaken(w *worker, pod *corev1.Pod) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, other := range n.workers {
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
func (n *node) KillPod(uid types.UID, end podspec.End) {
	n.mu.Lock()
	w := n.workers[uid]
	if w == nil || w.evicted != nil {
		n.mu.Unlock()
		return
	}
	w.evicted = &verdict{end, n.Clock.Now()}
	cancel := w.cancel
	n.mu.Unlock()
	if cancel != nil {
		cancel() // what is being done for it is moot
	}
	w.wake()
}

// Killing reports whether a pod that was killed within the time is still there.
func (n *node) Killing(within time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range n.workers {
		if w.evicted != nil && w.counted && !w.gone && n.Clock.Since(w.evicted.at) < within {
			return true
		}
	}
	return false
}

// Alive reports whether the pod has not ended yet.
func (n *node) Alive(uid types.UID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	w := n.workers[uid]
	return w != nil && w.counted
}

// AwaitEnd waits until the pods have ended, for no longer than the longest grace of them and half of it again, or ten seconds.
func (n *node) AwaitEnd(ctx context.Context, pods []*corev1.Pod) error {
	most := 10 * time.Second
	for _, pod := range pods {
		most = max(most, time.Duration(podspec.Grace(pod))*time.Second*3/2)
	}
	timer := n.Clock.NewTimer(most)
	defer timer.Stop()
	for {
		eased := n.Killed()
		if !slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return n.Alive(pod.UID) }) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C():
			n.Logger.Warn("Preempted pods have not ended in time", "pods", len(pods))
			return nil
		case <-eased:
		}
	}
}

// ease says that a pod that the node ends has ended.
func (n *node) ease() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.eased)
	n.eased = make(chan struct{})
}

// Killed is closed with the next such end.
func (n *node) Killed() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.eased
}

// reference is the node, for events.
func (n *node) reference() *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: n.NodeName, UID: types.UID(n.NodeName)}
}
