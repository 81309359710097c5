// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podworkers

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/backoff"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

// step is something that a worker does for its pod and tries again when it fails.
type step int

const (
	observePod step = iota
	killPod
	deletePod
	createSandbox
	createCgroup
	writePodStatus
	createMirror
	pruneContainers
	numSteps
)

// retries says of each step what a failure is called in the log, what event it has, and how long the worker waits: first, then twice as
// long each time, up to most. A reason that is empty: no event.
var retries = [numSteps]struct {
	log, reason, prefix string
	first, most         time.Duration
}{
	observePod: {log: "Container runtime does not answer, retrying", first: retrySoon, most: backoff.Max},
	killPod: {
		log: "Could not end a pod or a container of it, retrying", reason: "FailedKillPod", prefix: "error killing pod: ",
		first: retrySoon, most: backoff.Max,
	},
	deletePod: {log: "Could not delete a pod from the API server, retrying", first: retrySoon, most: retryLate},
	createSandbox: {
		log: "Could not create a pod sandbox, retrying", reason: "FailedCreatePodSandBox", prefix: "Failed to create pod sandbox: ",
		first: retryLate, most: retryLate,
	},
	createCgroup: {
		log: "Could not create the cgroup of a pod, retrying", reason: "FailedCreatePodContainer",
		prefix: "unable to ensure pod container exists: ", first: retryLate, most: retryLate,
	},
	writePodStatus:  {log: "Could not write the pod status, retrying", first: retrySoon, most: retryLate},
	createMirror:    {log: "Could not create the mirror of a static pod, retrying", first: retrySoon, most: retryLate},
	pruneContainers: {log: "Could not remove dead containers, retrying", first: retrySoon, most: retryLate},
}

// circumstances are what a pod that could not be ended is tried again at once for when they change.
type circumstances struct {
	seen  uint64 // sum of what the runtime has
	gone  bool   // from the API server
	grace int64  // as graceOf
}

// attempts are the failures of each step.
type attempts struct {
	failures [numSteps]backoff.Failures
	last     circumstances // of the round before
}

// held is how long a step that has failed still waits, whatever the worker was woken for; zero: it may be tried.
func (a *attempts) held(s step, now time.Time) time.Duration { return a.failures[s].Left(now) }

// succeeded takes that a step has not failed.
func (a *attempts) succeeded(s step) { a.failures[s].Clear() }

// compare ends the wait for the next attempt to end the pod, if its circumstances are not those of the round before.
func (a *attempts) compare(now circumstances) {
	if now != a.last {
		a.last = now
		a.failures[killPod].Release()
	}
}

// failed takes that a step has failed. It records the event, logs some of the failures, and returns when to try again.
func (w *worker) failed(ctx context.Context, pod *corev1.Pod, s step, err error) time.Duration {
	if ctx.Err() != nil {
		return retrySoon
	}
	m, r, f := w.m, &retries[s], &w.failures[s]
	if r.reason != "" && m.Spec(w.uid) != nil { // the API server has not heard of a pod that only the runtime knows
		m.Events.Event(pod, corev1.EventTypeWarning, r.reason, r.prefix+err.Error())
	}
	now := m.Clock.Now()
	f.Log(now, m.Logger.Warn, r.log, "pod", podspec.Describe(pod), "err", err)
	return f.Wait(now, r.first, r.most)
}

// kill ends what of the pod is to end: do does it. The answer is how long to wait before it may be tried again, zero if it is done.
func (w *worker) kill(ctx context.Context, pod *corev1.Pod, do func() error) time.Duration {
	if wait := w.held(killPod, w.m.Clock.Now()); wait > 0 {
		return wait
	}
	if err := do(); err != nil {
		return w.failed(ctx, pod, killPod, err)
	}
	w.succeeded(killPod)
	return 0
}
