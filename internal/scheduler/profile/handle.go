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
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/kube-scheduler/framework"
)

// handle is the part of [framework.Handle] that is not running plug-ins.
type handle struct {
	clients Clients
	profile *Profile
	waiting *waitingPods

	mu      sync.Mutex
	preBind map[types.UID]*podInPreBind
}

func (h *handle) SnapshotSharedLister() framework.SharedLister { return h.clients.Lister }

// MutableSnapshotSharedLister is nil unless the snapshot can be changed for the sake of argument.
func (h *handle) MutableSnapshotSharedLister() framework.MutableSnapshotSharedLister {
	m, _ := h.clients.Lister.(framework.MutableSnapshotSharedLister)
	return m
}

func (h *handle) ClientSet() kubernetes.Interface                        { return h.clients.Client }
func (h *handle) KubeConfig() *rest.Config                               { return h.clients.Config }
func (h *handle) EventRecorder() events.EventRecorderLogger              { return h.clients.Recorder }
func (h *handle) SharedInformerFactory() informers.SharedInformerFactory { return h.clients.Informers }
func (h *handle) SharedDRAManager() framework.SharedDRAManager           { return nil }
func (h *handle) SharedCSIManager() framework.CSIManager                 { return nil }
func (h *handle) Extenders() []framework.Extender                        { return nil }
func (h *handle) APIDispatcher() framework.APIDispatcher                 { return nil }
func (h *handle) APICacher() framework.APICacher                         { return nil }
func (h *handle) ProfileName() string                                    { return h.profile.name }
func (h *handle) PodGroupManager() framework.PodGroupManager             { return nil }
func (h *handle) Parallelizer() framework.Parallelizer                   { return parallelizer{} }
func (h *handle) IterateOverWaitingPods(callback func(framework.WaitingPod)) {
	h.waiting.each(callback)
}

func (h *handle) GetWaitingPod(uid types.UID) framework.WaitingPod {
	if w := h.waiting.get(uid); w != nil {
		return w
	}
	return nil
}

func (h *handle) RejectWaitingPod(uid types.UID) bool {
	w := h.waiting.get(uid)
	return w != nil && w.Reject("", "removed")
}

// The nominator and the activator are the queue's.

func (h *handle) AddNominatedPod(logger klog.Logger, pod framework.PodInfo, info *framework.NominatingInfo) {
	if h.clients.Nominator != nil {
		h.clients.Nominator.AddNominatedPod(logger, pod, info)
	}
}

func (h *handle) DeleteNominatedPodIfExists(pod *corev1.Pod) {
	if h.clients.Nominator != nil {
		h.clients.Nominator.DeleteNominatedPodIfExists(pod)
	}
}

func (h *handle) UpdateNominatedPod(logger klog.Logger, oldPod *corev1.Pod, pod framework.PodInfo) {
	if h.clients.Nominator != nil {
		h.clients.Nominator.UpdateNominatedPod(logger, oldPod, pod)
	}
}

func (h *handle) NominatedPodsForNode(node string) []framework.PodInfo {
	if h.clients.Nominator == nil {
		return nil
	}
	return h.clients.Nominator.NominatedPodsForNode(node)
}

func (h *handle) Activate(logger klog.Logger, pods map[string]*corev1.Pod) {
	if h.clients.Activator != nil {
		h.clients.Activator.Activate(logger, pods)
	}
}

type parallelizer struct{}

// Until does all pieces, on a few goroutines.
func (parallelizer) Until(ctx context.Context, pieces int, do workqueue.DoWorkPieceFunc, _ string) {
	workqueue.ParallelizeUntil(ctx, 4, pieces, do, workqueue.WithChunkSize(max(1, pieces/16)))
}

// podInPreBind is a pod between Permit and Bind, which a preemptor may call off.
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

func (h *handle) AddPodInPreBind(uid types.UID, cancel context.CancelCauseFunc) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.preBind == nil {
		h.preBind = map[types.UID]*podInPreBind{}
	}
	h.preBind[uid] = &podInPreBind{cancel: cancel}
}

func (h *handle) GetPodInPreBind(uid types.UID) framework.PodInPreBind {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.preBind[uid]; p != nil {
		return p
	}
	return nil
}

func (h *handle) RemovePodInPreBind(uid types.UID) {
	h.mu.Lock()
	delete(h.preBind, uid)
	h.mu.Unlock()
}

// waitingPods are the pods that Permit plug-ins let wait.
type waitingPods struct {
	mu   sync.RWMutex
	pods map[types.UID]*waitingPod
}

func newWaitingPods() *waitingPods { return &waitingPods{pods: map[types.UID]*waitingPod{}} }

func (w *waitingPods) get(uid types.UID) *waitingPod {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.pods[uid]
}

func (w *waitingPods) remove(uid types.UID) {
	w.mu.Lock()
	delete(w.pods, uid)
	w.mu.Unlock()
}

func (w *waitingPods) each(callback func(framework.WaitingPod)) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	for _, p := range w.pods {
		callback(p)
	}
}

func (w *waitingPods) add(pod *corev1.Pod, pending map[string]time.Duration) {
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

// Allow takes back one plug-in's wish to wait; the pod goes on after the last.
func (w *waitingPod) Allow(plugin string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t, ok := w.pending[plugin]; ok {
		t.Stop()
		delete(w.pending, plugin)
	}
	if len(w.pending) == 0 {
		w.send(nil)
	}
}

// Reject ends the waiting: the pod is not scheduled.
func (w *waitingPod) Reject(plugin, msg string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.pending {
		t.Stop()
	}
	return w.send(framework.NewStatus(framework.Unschedulable, msg).WithPlugin(plugin))
}

// Preempt ends the waiting for the sake of another pod.
func (w *waitingPod) Preempt(plugin, msg string) bool { return w.Reject(plugin, msg) }

func (w *waitingPod) send(s *framework.Status) bool {
	select {
	case w.verdict <- s:
		return true
	default:
		return false
	}
}
