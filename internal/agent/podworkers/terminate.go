// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podworkers

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// ending is the stop of a whole pod. It runs beside the worker's rounds, so that these keep the status up to date.
type ending struct {
	grace  int64
	cancel context.CancelFunc
	// Guarded by Manager.mu.
	over bool
	err  error
}

// terminate makes the next step to end a pod: stop it, tear it down, write the last status, and for a deleted pod remove all traces and
// delete it from the API server.
func (w *worker) terminate(life, ctx context.Context, pod *corev1.Pod, grace int64, deleted bool) time.Duration {
	m := w.m
	if len(w.state.Running()) > 0 || slices.ContainsFunc(w.state.Sandboxes, func(s podstate.Sandbox) bool { return s.Ready }) {
		pod = w.writeStatus(ctx, pod)
		return w.keepStopping(life, ctx, pod, grace)
	}
	w.ending = nil
	if !w.tornDown {
		if wait := w.kill(ctx, pod, func() error { return m.TearDown(ctx, w.uid) }); wait > 0 {
			return wait
		}
		w.tornDown = true
	}
	// Before the status is written: with that, the scheduler counts the pod no longer.
	m.mu.Lock()
	evicted := w.evicted != nil && w.counted
	w.counted = false
	m.mu.Unlock()
	w.writeStatus(ctx, pod)
	if evicted {
		m.ease()
	}
	if !deleted {
		return ended // nothing of it changes any more
	}
	if wait := w.kill(ctx, pod, func() error { return m.Deleter.Remove(ctx, pod, w.state) }); wait > 0 {
		return wait
	}
	if err := m.DeletePod(ctx, pod); err != nil {
		return w.failed(ctx, pod, deletePod, err)
	}
	w.succeeded(deletePod)
	w.removed = true
	return idle // until the API server has removed it
}

// keepStopping starts the stop of the pod, or restarts it with a shorter grace period.
func (w *worker) keepStopping(life, ctx context.Context, pod *corev1.Pod, grace int64) time.Duration {
	m := w.m
	m.mu.Lock()
	e := w.ending
	over, err := e != nil && e.over, error(nil)
	if over {
		err = e.err
	}
	m.mu.Unlock()
	switch {
	case e != nil && !over && grace >= e.grace:
		return idle
	case e != nil && !over:
		e.cancel()
	case over && err != nil:
		w.ending = nil
		return w.failed(ctx, pod, killPod, err)
	case over:
		w.succeeded(killPod)
	}
	if wait := w.held(killPod, m.Clock.Now()); wait > 0 {
		return wait
	}
	stopping, cancel := context.WithCancel(life)
	e = &ending{grace: grace, cancel: cancel}
	w.ending = e
	state := w.state
	w.stopping.Go(func() {
		defer cancel()
		err := m.Killer.StopPod(stopping, pod, state, grace)
		m.mu.Lock()
		e.over, e.err = true, err
		m.mu.Unlock()
		w.wake()
	})
	return idle
}

// bury ends the remains of a pod that the API server does not have.
func (w *worker) bury(life, ctx context.Context, pod *corev1.Pod) (time.Duration, bool) {
	m := w.m
	if pod == nil && !m.sourcesRead() {
		return retrySoon, false // the API server may show it soon
	}
	if pod == nil {
		pod = orphan(w.state)
	}
	m.probes.Ending(w.uid)
	if len(w.state.Running()) > 0 || w.state.ReadySandbox() != nil {
		seconds := podspec.Grace(pod)
		if pod.DeletionTimestamp != nil {
			seconds = graceOf(pod)
		}
		return w.keepStopping(life, ctx, pod, seconds), false
	}
	if wait := w.kill(ctx, pod, func() error {
		return errors.Join(m.TearDown(ctx, w.uid), m.Deleter.Remove(ctx, pod, w.state))
	}); wait > 0 {
		return wait, false
	}
	m.probes.Keep(w.uid, nil)
	m.Backoff.Forget(func(key string) bool { return startsWith(key, string(w.uid)) })
	m.Images.Forget(w.uid)
	m.mu.Lock()
	if w.spec != nil && !w.gone {
		m.mu.Unlock()
		return again, false // it came back
	}
	delete(m.workers, w.uid)
	evicted := w.evicted != nil && w.counted
	m.mu.Unlock()
	if evicted {
		m.ease()
	}
	if w.spec != nil && podspec.IsStatic(w.spec) {
		m.WakeNamed(podspec.Name(w.spec))
		m.Static.LookForOrphans()
	}
	return 0, true
}

func startsWith(s, prefix string) bool { return len(s) >= len(prefix) && s[:len(prefix)] == prefix }

// orphan returns the pod that the labels of its containers describe.
func orphan(state *podstate.Pod) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: state.Namespace, Name: state.Name, UID: state.UID}}
	for _, c := range state.Containers {
		if c.Note.TerminationGrace != nil {
			pod.Spec.TerminationGracePeriodSeconds = c.Note.TerminationGrace
		}
		spec := corev1.Container{Name: c.Name, Ports: c.Note.Ports}
		if c.Note.PreStop != nil {
			spec.Lifecycle = &corev1.Lifecycle{PreStop: c.Note.PreStop}
		}
		if podspec.Container(pod, c.Name) == nil {
			pod.Spec.Containers = append(pod.Spec.Containers, spec)
		}
	}
	return pod
}
