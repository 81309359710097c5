// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podworkers

import (
	"cmp"
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/backoff"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

// step is an action of a worker that it retries after a failure.
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

// retries has for each step the log message and the event reason of a failure, and the delay before the next attempt: the first delay,
// which doubles with each failure, and the maximum. An empty reason means no event.
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

// circumstances are the facts whose change triggers an immediate retry for a pod that could not be ended.
type circumstances struct {
	seen  uint64 // checksum of the runtime's state
	gone  bool   // from the API server
	grace int64  // as graceOf returns it
}

// attempts are the failures of each step.
type attempts struct {
	failures   [numSteps]backoff.Failures
	last       circumstances // of the previous round
	mountTries int           // failed preparations of the pod in a row
}

// held returns how long a failed step still has to wait, whatever woke the worker; zero: it may run.
func (a *attempts) held(s step, now time.Time) time.Duration { return a.failures[s].Left(now) }

// succeeded resets the failures of a step.
func (a *attempts) succeeded(s step) { a.failures[s].Clear() }

// compare allows an immediate attempt to end the pod if its circumstances have changed since the previous round.
func (a *attempts) compare(now circumstances) {
	if now != a.last {
		a.last = now
		a.failures[killPod].Release()
	}
}

// failed notes the failure of a step. It records the event, logs some of the failures, and returns the delay before the next attempt.
func (w *worker) failed(ctx context.Context, pod *corev1.Pod, s step, err error) time.Duration {
	if ctx.Err() != nil {
		return retrySoon
	}
	m, r, f := w.m, &retries[s], &w.failures[s]
	if r.reason != "" && m.Spec(w.uid) != nil { // the API server does not know a pod that only the runtime has
		m.Events.Event(pod, corev1.EventTypeWarning, r.reason, r.prefix+err.Error())
	}
	now := m.Clock.Now()
	f.Log(now, m.Logger.Warn, r.log, "pod", podspec.Describe(pod), "err", err)
	return f.Wait(now, r.first, r.most)
}

// kill calls do to end the pod, unless the step has to wait. It returns the delay before the next attempt; zero: it is done.
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

// reasonFor returns the reason of the event of an error, which may name its own.
func reasonFor(err error, usual string) string {
	if own := (interface{ EventReason() string })(nil); errors.As(err, &own) {
		return cmp.Or(own.EventReason(), usual)
	}
	return usual
}
