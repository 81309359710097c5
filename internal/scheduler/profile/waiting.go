// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"
)

// Waiting are the pods in their binding cycle that can still be stopped: those that wait for Permit plug-ins, and those whose PreBind
// plug-ins run. Its methods may be called concurrently.
type Waiting struct {
	mu      sync.RWMutex
	pods    map[types.UID]*waitingPod
	preBind map[types.UID]*podInPreBind
}

// NewWaiting returns an empty set.
func NewWaiting() *Waiting {
	return &Waiting{pods: map[types.UID]*waitingPod{}, preBind: map[types.UID]*podInPreBind{}}
}

// podInPreBind is a pod between Permit and Bind, which a preemptor may cancel.
type podInPreBind struct {
	mu       sync.Mutex
	cancel   context.CancelCauseFunc
	finished bool
	canceled bool
}

func (p *podInPreBind) CancelPod(reason string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.finished {
		return false
	}
	p.canceled = true
	p.cancel(errors.New(reason))
	return true
}

func (p *podInPreBind) MarkPrebound() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finished = !p.canceled
	return p.finished
}

func (w *Waiting) addPreBind(uid types.UID, cancel context.CancelCauseFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.preBind[uid] = &podInPreBind{cancel: cancel}
}

func (w *Waiting) inPreBind(uid types.UID) *podInPreBind {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.preBind[uid]
}

func (w *Waiting) removePreBind(uid types.UID) {
	w.mu.Lock()
	delete(w.preBind, uid)
	w.mu.Unlock()
}

func (w *Waiting) get(uid types.UID) *waitingPod {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.pods[uid]
}

func (w *Waiting) remove(uid types.UID) {
	w.mu.Lock()
	delete(w.pods, uid)
	w.mu.Unlock()
}

func (w *Waiting) each(callback func(framework.WaitingPod)) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	for _, p := range w.pods {
		callback(p)
	}
}

func (w *Waiting) add(pod *corev1.Pod, pending map[string]time.Duration) {
	p := &waitingPod{pod: pod, pending: map[string]*time.Timer{}, verdict: make(chan *framework.Status, 1)}
	p.mu.Lock()
	for plugin, d := range pending {
		p.pending[plugin] = time.AfterFunc(d, func() {
			p.Reject(plugin, fmt.Sprintf("rejected due to timeout after waiting %v at plugin %v", d, plugin))
		})
	}
	p.mu.Unlock()
	w.mu.Lock()
	w.pods[pod.UID] = p
	w.mu.Unlock()
}

type waitingPod struct {
	pod     *corev1.Pod
	verdict chan *framework.Status

	mu      sync.Mutex
	pending map[string]*time.Timer
	decided bool
}

func (w *waitingPod) GetPod() *corev1.Pod { return w.pod }

func (w *waitingPod) GetPendingPlugins() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]string, 0, len(w.pending))
	for p := range w.pending {
		out = append(out, p)
	}
	return out
}

// Allow ends one plug-in's wait; the pod continues after the last.
func (w *waitingPod) Allow(plugin string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t, ok := w.pending[plugin]; ok {
		t.Stop()
		delete(w.pending, plugin)
	}
	if len(w.pending) == 0 {
		w.decide(nil)
	}
}

// Reject ends the wait: the pod is not scheduled. It returns false if the wait was over already.
func (w *waitingPod) Reject(plugin, msg string) bool {
	return w.stop(framework.NewStatus(framework.Unschedulable, msg).WithPlugin(plugin))
}

// Preempt ends the wait in favour of another pod. The scheduler retries the pod, which is not at fault.
func (w *waitingPod) Preempt(plugin, msg string) bool {
	return w.stop(framework.NewStatus(framework.Error, msg).WithPlugin(plugin))
}

func (w *waitingPod) stop(s *framework.Status) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.pending {
		t.Stop()
	}
	return w.decide(s)
}

// decide sets the verdict, if there is none yet. The caller holds the lock.
func (w *waitingPod) decide(s *framework.Status) bool {
	if w.decided {
		return false
	}
	w.decided = true
	w.verdict <- s // the channel has room for one
	return true
}
