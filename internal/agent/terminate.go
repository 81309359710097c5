// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/decide"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// ending is the stopping of a whole pod, which goes on beside the worker's rounds, so
// that the status is kept up to date meanwhile.
type ending struct {
	grace  int64
	cancel context.CancelFunc
	// Guarded by node.mu.
	over bool
	err  error
}

// terminate makes the next step of ending a pod: stop, take down, write the last status,
// and for a deleted pod remove all traces and let the API server forget it.
func (w *worker) terminate(ctx context.Context, pod *corev1.Pod, grace int64, deleted bool) time.Duration {
	n := w.n
	if len(w.state.Running()) > 0 || slices.ContainsFunc(w.state.Sandboxes, func(s podstate.Sandbox) bool { return s.Ready }) {
		pod = w.writeStatus(ctx, pod)
		return w.keepStopping(pod, grace)
	}
	w.ending = nil
	if !w.tornDown {
		if err := n.TearDown(ctx, w.uid); err != nil {
			return w.trouble(ctx, pod, "FailedKillPod", "error killing pod: ", err)
		}
		w.tornDown = true
	}
	w.writeStatus(ctx, pod)
	n.mu.Lock()
	evicted := w.evicted != nil && w.counted
	w.counted = false
	n.mu.Unlock()
	if evicted {
		n.ease()
	}
	if !deleted {
		return ended // nothing of it changes any more
	}
	if err := w.remove(ctx, pod); err != nil {
		return w.trouble(ctx, pod, "FailedKillPod", "error killing pod: ", err)
	}
	if err := n.DeletePod(ctx, pod); err != nil {
		if ctx.Err() == nil {
			n.Logger.Warn("Could not delete a pod", "pod", podspec.Describe(pod), "err", err)
		}
		return retrySoon
	}
	w.removed = true
	return idle // until the API server says that it is gone
}

// keepStopping starts the stopping of the pod, or again with a shorter grace.
func (w *worker) keepStopping(pod *corev1.Pod, grace int64) time.Duration {
	n := w.n
	n.mu.Lock()
	e := w.ending
	over, err := e != nil && e.over, error(nil)
	if over {
		err = e.err
	}
	n.mu.Unlock()
	switch {
	case e != nil && !over && grace >= e.grace:
		return idle
	case e != nil && !over:
		e.cancel()
	case over && err != nil:
		w.ending = nil
		n.recorder.Event(pod, corev1.EventTypeWarning, "FailedKillPod", "error killing pod: "+err.Error())
		return retrySoon
	}
	ctx, cancel := context.WithCancel(n.ctx)
	e = &ending{grace: grace, cancel: cancel}
	w.ending = e
	state := w.state
	n.running.Go(func() {
		defer cancel()
		err := n.killer.StopPod(ctx, pod, state, grace)
		n.mu.Lock()
		e.over, e.err = true, err
		n.mu.Unlock()
		w.wake()
	})
	return idle
}

// bury ends what is left of a pod that the API server does not have (any more).
func (w *worker) bury(ctx context.Context, pod *corev1.Pod) (time.Duration, bool) {
	n := w.n
	if pod == nil && !n.sourcesRead() {
		return retrySoon, false // it may be known in a moment
	}
	if pod == nil {
		pod = orphan(w.state)
	}
	n.probes.Ending(w.uid)
	if len(w.state.Running()) > 0 || w.state.ReadySandbox() != nil {
		seconds := podspec.Grace(pod)
		if pod.DeletionTimestamp != nil {
			seconds = graceOf(pod)
		}
		return w.keepStopping(pod, seconds), false
	}
	if err := errors.Join(n.TearDown(ctx, w.uid), w.remove(ctx, pod)); err != nil {
		if ctx.Err() == nil {
			n.Logger.Warn("Could not remove the rest of a pod", "pod", podspec.Describe(pod), "err", err)
		}
		return retryLate, false
	}
	n.probes.Keep(w.uid, nil)
	n.containerBackoff.Forget(func(key string) bool { return startsWith(key, string(w.uid)) })
	n.images.Forget(w.uid)
	n.mu.Lock()
	if w.spec != nil && !w.gone {
		n.mu.Unlock()
		return again, false // it came back
	}
	delete(n.workers, w.uid)
	evicted := w.evicted != nil && w.counted
	n.mu.Unlock()
	if evicted {
		n.ease()
	}
	if w.spec != nil && podspec.IsStatic(w.spec) {
		n.WakeNamed(podspec.Name(w.spec))
		n.static.LookForOrphans()
	}
	return 0, true
}

func startsWith(s, prefix string) bool { return len(s) >= len(prefix) && s[:len(prefix)] == prefix }

// orphan is what can be said of a pod from its containers' notes.
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

// stopAll stops a pod from within a round.
func (w *worker) stopAll(ctx context.Context, pod *corev1.Pod, grace int64) error {
	return w.n.killer.StopPod(ctx, pod, w.state, grace)
}

// reset stops containers without grace and has the runtime forget them, in their order. Their logs stay: they say how often each was
// started.
func (w *worker) reset(ctx context.Context, pod *corev1.Pod, list []decide.Reset) error {
	n := w.n
	for _, r := range list {
		spec := podspec.Container(pod, r.Name)
		if r.Kill {
			n.containerEvent(pod, spec, corev1.EventTypeNormal, "Killing", "killing")
			if err := n.killer.StopContainer(ctx, pod, spec, r.ID, 0); err != nil {
				return err
			}
		}
		if err := n.cri.Runtime.RemoveContainer(cri.Quiet(ctx), r.ID); err != nil && !cri.IsNotFound(err) {
			return fmt.Errorf("remove container %s: %w", r.Name, err)
		}
	}
	return nil
}

// stopOne stops one container of a pod that goes on.
func (w *worker) stopOne(ctx context.Context, pod *corev1.Pod, k decide.Kill) error {
	n := w.n
	spec := podspec.Container(pod, k.Name)
	seconds := podspec.Grace(pod)
	switch {
	case k.Reason == "liveness" && spec.LivenessProbe != nil && spec.LivenessProbe.TerminationGracePeriodSeconds != nil:
		seconds = *spec.LivenessProbe.TerminationGracePeriodSeconds
	case k.Reason == "startup" && spec.StartupProbe != nil && spec.StartupProbe.TerminationGracePeriodSeconds != nil:
		seconds = *spec.StartupProbe.TerminationGracePeriodSeconds
	}
	n.containerEvent(pod, spec, corev1.EventTypeNormal, "Killing", k.Message)
	return n.killer.StopContainer(ctx, pod, spec, k.ID, seconds)
}

// remove takes the pod's dead containers, sandboxes and logs away.
func (w *worker) remove(ctx context.Context, pod *corev1.Pod) error {
	n := w.n
	for _, c := range w.state.Containers {
		if err := n.cri.Runtime.RemoveContainer(cri.Quiet(ctx), c.ID); err != nil && !cri.IsNotFound(err) {
			return fmt.Errorf("remove container %s: %w", c.Name, err)
		}
	}
	for _, s := range w.state.Sandboxes {
		// A sandbox that the runtime has lost sight of may still have a network: stop says DEL to it.
		if err := n.cri.Runtime.StopPodSandbox(cri.Quiet(ctx), s.ID); err != nil && !cri.IsNotFound(err) {
			return fmt.Errorf("stop sandbox %s: %w", s.ID, err)
		}
		if err := n.cri.Runtime.RemovePodSandbox(cri.Quiet(ctx), s.ID); err != nil && !cri.IsNotFound(err) {
			return fmt.Errorf("remove sandbox %s: %w", s.ID, err)
		}
	}
	if pod.Name == "" {
		return nil
	}
	if err := os.RemoveAll(n.config.PodLogDir(pod)); err != nil {
		return fmt.Errorf("remove logs: %w", err)
	}
	return nil
}

// prune removes dead instances of containers but the newest of each, and dead sandboxes
// that have no containers.
func (w *worker) prune(ctx context.Context) error {
	n := w.n
	seen := map[string]int{}
	inUse := map[string]bool{}
	for _, c := range w.state.Containers {
		if c.State == podstate.Running || c.State == podstate.Unknown {
			inUse[c.SandboxID] = true
			continue
		}
		seen[c.Name]++
		if seen[c.Name] == 1 {
			inUse[c.SandboxID] = true
			continue
		}
		if err := n.cri.Runtime.RemoveContainer(cri.Quiet(ctx), c.ID); err != nil && !cri.IsNotFound(err) {
			return fmt.Errorf("remove container %s: %w", c.Name, err)
		}
	}
	for i, s := range w.state.Sandboxes {
		if i == 0 || s.Ready || inUse[s.ID] {
			continue
		}
		if err := n.cri.Runtime.RemovePodSandbox(cri.Quiet(ctx), s.ID); err != nil && !cri.IsNotFound(err) {
			return fmt.Errorf("remove sandbox %s: %w", s.ID, err)
		}
	}
	return nil
}
