// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podworkers

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/decide"
	"github.com/mortise-dev/mortise/internal/agent/pleg"
	"github.com/mortise-dev/mortise/internal/agent/podadmission"
	"github.com/mortise-dev/mortise/internal/agent/podresize"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/agent/podstatus"
)

// The delays of a worker before the next attempt.
const (
	retrySoon = time.Second
	retryLate = 10 * time.Second
)

// entry is the state of a pod that other rooms read or change. podTable.mu guards it.
type entry struct {
	spec    *corev1.Pod // newest definition; nil for a pod that only the runtime has
	gone    bool        // from the API server
	counted bool        // its requests count against the node
	status  *corev1.PodStatus
	made    *corev1.Pod        // the result of the last write, until the informer shows it
	cancel  context.CancelFunc // ends the current round
	evicted *verdict           // the node ends the pod
}

// worker runs one pod. Each pod has one worker, and each worker one goroutine. A change of the definition, an event of the runtime, a
// probe's result, a change of an object that the pod refers to, and the worker's own timer wake it. Whatever the cause, it looks at the
// whole state again.
type worker struct {
	m     *Manager
	uid   types.UID
	wakes chan struct{}
	seen  atomic.Uint64 // checksum of what the last round saw
	entry

	// Only the goroutine uses the fields below.
	admitted  bool
	state     *podstate.Pod
	waiting   map[string]corev1.ContainerStateWaiting
	messages  lastWords
	resizer   *podresize.Pod
	adopted   bool
	inherited inherited // if the pod is in the node's network
	final     *failing  // the node has ended the pod
	ending    *ending
	stopping  sync.WaitGroup         // of endings
	hold      *containermanager.Hold // a plug-in that the pod waits for
	tornDown  bool
	removed   bool // the worker has deleted the pod from the API server
	written   written
	attempts
}

// written is the last written status of the pod.
type written struct {
	status  *corev1.PodStatus
	at      string         // its resource version
	mirror  types.UID      // the UID of a static pod's mirror pod
	writing sync.WaitGroup // writes that run beside the round
	retry   time.Duration  // when to repeat a failed write of the current round; zero: none
	changed time.Time      // when the status that is not written yet was new; zero: all is written
	times   startTimes     // of the start that the statuses show
}

// PodAdded handles a pod that the informer has added.
func (m *Manager) PodAdded(pod *corev1.Pod) {
	if podspec.IsMirror(pod) {
		m.Mirrors.MirrorSeen(pod, false)
		return
	}
	m.SetPod(pod)
}

// PodUpdated handles a pod's newest definition. While the watch was interrupted, the pod may have been deleted and another one with its
// name created.
func (m *Manager) PodUpdated(old, pod *corev1.Pod) {
	if old.UID != pod.UID {
		m.PodDeleted(old)
	}
	m.PodAdded(pod)
}

// PodDeleted handles a pod that the informer has deleted.
func (m *Manager) PodDeleted(pod *corev1.Pod) {
	if podspec.IsMirror(pod) {
		m.Mirrors.MirrorSeen(pod, true)
		return
	}
	m.RemovePod(pod)
}

// SetPod sets a pod's newest definition.
func (m *Manager) SetPod(pod *corev1.Pod) {
	m.mu.Lock()
	w := m.workerOf(pod.UID)
	old := w.spec
	if old == nil && begunBefore(pod) {
		w.counted = true
	}
	known := !w.gone && echo(old, pod, w.status)
	if w.spec, w.gone = pod, false; w.made != nil && !newer(w.made.ResourceVersion, pod.ResourceVersion) {
		w.made = nil
	}
	m.noteChange()
	var cancel context.CancelFunc
	if old != nil && graceOf(old) != graceOf(pod) {
		// The pod must end, or end sooner: the current round's work is obsolete.
		cancel = w.cancel
	}
	m.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	if old != nil && old.Generation != pod.Generation {
		m.Resizes.Requested(old, pod)
	}
	if !known {
		w.wake()
	}
}

// begunBefore reports whether a former process of the node admitted the pod, and the pod has not ended.
func begunBefore(pod *corev1.Pod) bool {
	over := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	return pod.Status.StartTime != nil && !over
}

// graceOf returns the grace period of a pod that is being deleted; -1 for other pods.
func graceOf(pod *corev1.Pod) int64 {
	switch {
	case pod == nil || pod.DeletionTimestamp == nil:
		return -1
	case pod.DeletionGracePeriodSeconds == nil:
		return 0
	}
	return *pod.DeletionGracePeriodSeconds
}

// RemovePod notes that the API server does not have the pod any more.
func (m *Manager) RemovePod(pod *corev1.Pod) {
	m.mu.Lock()
	w := m.workers[pod.UID]
	var cancel context.CancelFunc
	if w != nil {
		w.gone, cancel = true, w.cancel
		m.noteChange()
		if pod.DeletionTimestamp != nil {
			w.spec = pod // it has the remaining grace period
		}
	}
	m.mu.Unlock()
	if w != nil {
		if cancel != nil {
			cancel()
		}
		w.wake()
	}
}

// workerOf finds or makes a pod's worker. The caller holds the lock.
func (m *Manager) workerOf(uid types.UID) *worker {
	w := m.workers[uid]
	if w == nil {
		w = &worker{
			m: m, uid: uid, wakes: make(chan struct{}, 1), waiting: map[string]corev1.ContainerStateWaiting{}, messages: lastWords{},
			resizer: m.Resizes.NewPod(),
		}
		m.workers[uid] = w
		m.new = append(m.new, w)
		select {
		case m.begun <- struct{}{}:
		default:
		}
	}
	return w
}

// Wake wakes the pod's worker.
func (t *podTable) Wake(uid types.UID) {
	t.mu.Lock()
	w := t.workers[uid]
	t.mu.Unlock()
	if w != nil {
		w.wake()
	}
}

func (t *podTable) WakeEach(uids []types.UID) {
	for _, uid := range uids {
		t.Wake(uid)
	}
}

func (w *worker) wake() {
	select {
	case w.wakes <- struct{}{}:
	default:
	}
}

// run runs rounds until the pod is gone and nothing is left of it.
func (w *worker) run(ctx context.Context) {
	defer w.stopping.Wait()
	defer w.m.probes.Keep(w.uid, nil)
	for ctx.Err() == nil {
		round, cancel := context.WithCancel(ctx)
		w.m.mu.Lock()
		w.cancel = cancel
		spec := w.spec
		w.m.mu.Unlock()
		select {
		case <-w.wakes: // this round sees the cause
		default:
		}
		w.written.retry = 0
		begun, first := w.m.Clock.Now(), w.written.times.seen.IsZero()
		if first {
			w.written.times.seen, w.written.times.done = begun, spec == nil || begunBefore(spec)
		}
		next, done := w.round(ctx, round)
		w.written.writing.Wait()
		w.m.Starts.round(first, w.m.Clock.Since(begun))
		w.m.Starts.running(&w.written.times, spec, w.written.status, w.m.Clock.Now())
		cancel()
		if done {
			return
		}
		if w.written.retry > 0 {
			next = min(next, w.written.retry)
		}
		if next == again {
			continue
		}
		timer := w.m.Clock.NewTimer(next)
		select {
		case <-ctx.Done():
		case <-w.wakes:
		case <-timer.C():
		}
		timer.Stop()
	}
}

// failing is why the node ends a pod: the reason and the message of its status.
type failing struct {
	Reason, Message string
	refused         bool // the pod was not admitted
}

// The results of a round that are no delay.
const (
	again = time.Duration(0)
	idle  = 60 * time.Second // until an event wakes the worker
	ended = time.Hour        // for a pod that has ended
)

// round looks at the whole state once and makes the next step. Work that outlasts the round ends with life.
func (w *worker) round(life, ctx context.Context) (next time.Duration, done bool) {
	m := w.m
	m.mu.Lock()
	pod, gone, evicted := w.spec, w.gone, w.evicted
	m.mu.Unlock()
	if evicted != nil && w.final == nil {
		w.final = &failing{Reason: evicted.Reason, Message: evicted.Message}
	}

	state, err := m.Runtime.Observe(ctx, w.uid)
	if err != nil {
		if ctx.Err() == nil {
			m.NodeStatus.Resync()
		}
		if pod == nil {
			pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: w.uid}}
		}
		return w.failed(ctx, pod, observePod, err), false
	}
	w.succeeded(observePod)
	w.state = state
	w.seen.Store(pleg.Sum(state))
	w.compare(circumstances{w.seen.Load(), gone, graceOf(pod)})
	w.messages.fillIn(pod, state, &m.RunConfig)

	if pod == nil || gone {
		return w.bury(life, ctx, pod)
	}
	pod = w.withStatus(pod)
	w.probe(ctx, pod, state)
	switch {
	case pod.DeletionTimestamp != nil:
		next = w.terminate(life, ctx, pod, graceOf(pod), true)
	case w.final != nil || podstatus.Ended(pod.Status.Phase):
		seconds := podspec.Grace(pod)
		if evicted != nil {
			seconds = evicted.Grace
		}
		next = w.terminate(life, ctx, pod, seconds, false)
	case pastDeadline(pod, m.Clock.Now()):
		w.final = &failing{
			Reason: "DeadlineExceeded", Message: "Pod was active on the node longer than the specified deadline",
		}
		m.Events.Event(pod, corev1.EventTypeNormal, "DeadlineExceeded", w.final.Message)
		next = again
	default:
		next = w.advance(ctx, pod)
	}
	if until := untilDeadline(pod, m.Clock.Now()); until > 0 && until < next {
		next = until
	}
	return next, false
}

// advance makes the next step of a pod that should run.
func (w *worker) advance(ctx context.Context, pod *corev1.Pod) time.Duration {
	m := w.m
	if podspec.IsStatic(pod) && m.nameTaken(w, pod) {
		return idle // the end of the other pod wakes it
	}
	retry, ok := w.prepare(ctx, pod)
	if !ok {
		return retry
	}
	if next := w.proceed(ctx, pod); retry == 0 || next < retry {
		return next
	}
	return retry
}

// prepare sets up what the pod needs. ok reports whether the pod may go on; retry is the delay before the next attempt, zero if nothing
// failed. As with kubelet, a pod whose containers exist goes on with the volumes that it has if they cannot be updated.
func (w *worker) prepare(ctx context.Context, pod *corev1.Pod) (retry time.Duration, ok bool) {
	m := w.m
	for _, h := range m.hooks {
		if h.setUp == nil {
			continue
		}
		err := h.setUp(ctx, w, pod)
		if err == nil {
			continue
		}
		if reject := (*podadmission.Rejection)(nil); errors.As(err, &reject) {
			w.final = &failing{Reason: reject.Reason, Message: reject.StatusMessage(), refused: true}
			m.Events.Event(pod, corev1.EventTypeWarning, reject.Reason, reject.Message)
			return again, false
		}
		if ctx.Err() != nil {
			return retrySoon, false
		}
		if hold := (*containermanager.Hold)(nil); errors.As(err, &hold) {
			w.hold = hold
			w.writeStatus(ctx, pod)
			return max(hold.Until.Sub(m.Clock.Now()), retrySoon), false
		}
		m.Events.Event(pod, corev1.EventTypeWarning, reasonFor(err, h.reason), err.Error())
		w.mountTries++
		retry = min(500*time.Millisecond<<min(w.mountTries, 8), 2*time.Minute)
		if !begun(w.state) {
			w.writeStatus(ctx, pod)
			return retry, false
		}
	}
	if retry == 0 {
		w.mountTries = 0
	}
	w.hold = nil
	return retry, true
}

// begun reports whether containers exist in the pod's current sandbox. Then all its volumes were set up.
func begun(state *podstate.Pod) bool {
	sandbox := state.ReadySandbox()
	return sandbox != nil && slices.ContainsFunc(state.Containers, func(c podstate.Container) bool { return c.SandboxID == sandbox.ID })
}

// proceed makes the next step of a prepared pod.
func (w *worker) proceed(ctx context.Context, pod *corev1.Pod) time.Duration {
	m := w.m
	act := decide.Next(w.input(pod))
	if !act.KillPod && !act.Done && len(act.Reset) == 0 {
		act.Kill = append(act.Kill, w.resizer.Resize(ctx, pod, w.state)...)
	}
	w.noteWaiting(pod, act)
	if startsSomething(act) {
		pod = w.writeBeside(ctx, pod)
	} else {
		pod = w.writeStatus(ctx, pod)
	}
	switch {
	case len(act.Reset) > 0:
		if wait := w.kill(ctx, pod, func() error { return m.Deleter.Reset(ctx, pod, act.Reset) }); wait > 0 {
			return wait
		}
		return again
	case act.Done:
		return w.complete(ctx, pod, act)
	case act.KillPod:
		if wait := w.held(createSandbox, m.Clock.Now()); wait > 0 && act.CreateSandbox && len(w.state.Running()) == 0 {
			return wait
		}
		if len(w.state.Sandboxes) > 0 || len(w.state.Running()) > 0 {
			if wait := w.kill(ctx, pod, func() error {
				if act.SandboxChanged {
					m.Events.Event(pod, corev1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
				}
				return m.Killer.StopPod(ctx, pod, w.state, podspec.Grace(pod))
			}); wait > 0 {
				return wait
			}
		}
		if act.CreateSandbox {
			if err := m.Cgroups.Create(pod); err != nil {
				return w.failed(ctx, pod, createCgroup, err)
			}
			w.succeeded(createCgroup)
			return w.makeSandbox(ctx, pod, act.Attempt)
		}
		return again
	}
	if len(act.Kill) > 0 {
		if wait := w.kill(ctx, pod, func() error {
			for _, k := range act.Kill {
				if err := m.Killer.StopOne(ctx, pod, k); err != nil {
					return err
				}
			}
			return nil
		}); wait > 0 {
			return wait
		}
		return again
	}
	if len(act.Start)+len(act.Ephemeral) > 0 {
		if err := m.Cgroups.Bound(pod); err != nil {
			return w.failed(ctx, pod, createCgroup, err)
		}
		w.succeeded(createCgroup)
	}
	started, retry := w.startContainers(ctx, pod, act)
	if started {
		return again
	}
	next := m.Kubelet.SyncFrequency.Duration // the period in which volumes are updated at least once
	if len(w.resizer.Conditions()) > 0 {
		next = retryLate // there may be enough resources by then
	}
	if retry > 0 {
		next = retry
		w.writeStatus(ctx, pod)
	}
	for _, held := range act.Waiting {
		next = min(next, max(held.Until.Sub(m.Clock.Now()), again))
	}
	if renewal := m.Volumes.NextRenewal(w.uid); !renewal.IsZero() {
		next = min(next, max(renewal.Sub(m.Clock.Now()), retrySoon))
	}
	if err := m.Deleter.Prune(ctx, w.state); err != nil {
		w.failed(ctx, pod, pruneContainers, err) // the next round tries again
	} else {
		w.succeeded(pruneContainers)
	}
	return next
}

// startsSomething reports whether the actions take long and do not read the status that is written meanwhile. Ending a pod reads it.
func startsSomething(act decide.Action) bool {
	return !act.Done && (act.CreateSandbox || len(act.Start)+len(act.Ephemeral) > 0)
}

// complete ends a pod whose containers are done: it stops those that still run (sidecars), and the status records the result.
func (w *worker) complete(ctx context.Context, pod *corev1.Pod, act decide.Action) time.Duration {
	if act.KillPod && (len(w.state.Running()) > 0 || w.state.ReadySandbox() != nil) {
		if wait := w.kill(ctx, pod, func() error { return w.m.Killer.StopPod(ctx, pod, w.state, podspec.Grace(pod)) }); wait > 0 {
			return wait
		}
		return again
	}
	if w.written.status != nil && (w.written.status.Phase == corev1.PodSucceeded || w.written.status.Phase == corev1.PodFailed) {
		return again // the next round sees the phase, and ends the pod
	}
	return retryLate
}

// input collects the facts for a decision.
func (w *worker) input(pod *corev1.Pod) decide.Input {
	m := w.m
	return decide.Input{
		Pod: pod, State: w.state, Now: m.Clock.Now(),
		Failed: m.probes.Failed(w.uid),
		Started: func(id string) bool {
			for i := range w.state.Containers {
				if c := &w.state.Containers[i]; c.ID == id {
					if spec := podspec.Container(pod, c.Name); spec != nil {
						return m.probes.Started(spec, id)
					}
				}
			}
			return true
		},
		Backoff: func(c *corev1.Container, last *podstate.Container) (time.Time, time.Duration) {
			return m.Backoff.Until(backoffKey(w.uid, c), last.Finished)
		},
	}
}

// probe starts the probes of running containers, and stops all others.
func (w *worker) probe(ctx context.Context, pod *corev1.Pod, state *podstate.Pod) {
	m := w.m
	keep := map[string]bool{}
	first := !w.adopted
	w.adopted = true
	ips := podstatus.PodIPs(pod, state, m.Addresses.Texts())
	for _, c := range state.Running() {
		spec := podspec.Container(pod, c.Name)
		if spec == nil || c.State != podstate.Running {
			continue
		}
		keep[c.ID] = true
		m.ensureProbed(ctx, pod, spec, c, ips)
		if !first {
			continue
		}
		for _, list := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
			for _, s := range list {
				if s.ContainerID == m.Runtime.ContainerID(c.ID) {
					m.probes.Adopt(c.ID, s.Started != nil && *s.Started, s.Ready)
				}
			}
		}
	}
	m.probes.Keep(w.uid, keep)
	if pod.DeletionTimestamp != nil || w.final != nil {
		m.probes.Ending(w.uid)
	}
}

// statusOf computes the pod's current status.
func (w *worker) statusOf(pod *corev1.Pod) corev1.PodStatus {
	m := w.m
	in := podstatus.Input{
		Pod: pod, State: w.state, HostIPs: m.Addresses.Texts(), Scheme: m.Runtime.Name, Waiting: w.waiting,
		Started: func(c *podstate.Container) bool {
			spec := podspec.Container(pod, c.Name)
			return spec == nil || m.probes.Started(spec, c.ID)
		},
		Ready: func(c *podstate.Container) bool {
			spec := podspec.Container(pod, c.Name)
			return spec == nil || m.probes.Ready(spec, c.ID)
		},
		Resources: func(c *podstate.Container, spec *corev1.Container) corev1.ResourceRequirements {
			return w.resizer.Bounds(pod, c.ID, spec)
		},
		Resize: podstatus.Resize{Whole: w.resizer.Whole(pod), Resizing: w.resizer.Conditions()},
		Given:  func(container string) []corev1.ResourceStatus { return m.NodeResources.ResourceStatus(pod, container) },
		Now:    metav1.NewTime(m.Clock.Now()).Rfc3339Copy(),
	}
	if w.hold != nil && w.hold.Plugin != "" {
		in.Resizing = append(slices.Clone(in.Resizing), corev1.PodCondition{
			Type: podstatus.WaitingForPlugin, Status: corev1.ConditionTrue, Reason: "PluginNotRegistered", Message: w.hold.Message,
		})
	}
	if pod.Spec.HostNetwork && w.state != nil {
		in.PodIPs = w.inherited.inherit(w.state, in.HostIPs)
	}
	m.mu.Lock()
	if e := w.evicted; e != nil && e.Disruption != "" {
		in.Disruption = &corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet, Message: e.Disruption,
		}
	}
	m.mu.Unlock()
	if w.final != nil {
		in.Terminal, in.Reason, in.Message, in.Rejected = true, w.final.Reason, w.final.Message, w.final.refused
	}
	if pod.DeletionTimestamp != nil && len(w.state.Running()) == 0 {
		in.Terminal = true
	}
	in.Over, in.Static = w.tornDown, podspec.IsStatic(pod)
	return podstatus.Make(in)
}
