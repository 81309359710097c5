// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/decide"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// minGrace is the least that a container is given between the polite signal and the other.
const minGrace = 2

// ending is the stopping of a whole pod, which goes on beside the worker's rounds, so
// that the status is kept up to date meanwhile.
type ending struct {
	grace  int64
	cancel context.CancelFunc
	// Guarded by node.mu.
	over bool
	err  error
}

// grace is how long the pod's containers have when nobody has said otherwise.
func grace(pod *corev1.Pod) int64 {
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		return *s
	}
	return corev1.DefaultTerminationGracePeriodSeconds
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
		if err := n.tearDown(ctx, w.uid); err != nil {
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
		err := n.stopPod(ctx, pod, state, grace)
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
		seconds := grace(pod)
		if pod.DeletionTimestamp != nil {
			seconds = graceOf(pod)
		}
		return w.keepStopping(pod, seconds), false
	}
	if err := errors.Join(n.tearDown(ctx, w.uid), w.remove(ctx, pod)); err != nil {
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
	return w.n.stopPod(ctx, pod, w.state, grace)
}

// stopPod stops the pod's containers side by side, then sidecars in reverse order, then
// the sandboxes.
func (n *node) stopPod(ctx context.Context, pod *corev1.Pod, state *podstate.Pod, grace int64) error {
	started := n.Clock.Now()
	left := func() int64 { return max(grace-int64(n.Clock.Since(started)/time.Second), 0) }
	var sidecars []*podstate.Container
	var all sync.WaitGroup
	var mu sync.Mutex
	var failed []error
	stop := func(c *podstate.Container) {
		spec := podspec.Container(pod, c.Name)
		if spec == nil {
			spec = &corev1.Container{Name: c.Name}
		}
		n.containerEvent(pod, spec, corev1.EventTypeNormal, "Killing", "Stopping container "+c.Name)
		if err := n.stopContainer(ctx, pod, spec, c.ID, left()); err != nil {
			mu.Lock()
			failed = append(failed, err)
			mu.Unlock()
		}
	}
	for _, c := range state.Running() {
		if spec := initContainer(pod, c.Name); spec != nil && decide.Sidecar(spec) {
			sidecars = append(sidecars, c)
			continue
		}
		all.Go(func() { stop(c) })
	}
	all.Wait()
	// The last to be started is the first to be stopped.
	slices.SortStableFunc(sidecars, func(a, b *podstate.Container) int { return initIndex(pod, b.Name) - initIndex(pod, a.Name) })
	for _, c := range sidecars {
		stop(c)
	}
	if len(failed) > 0 {
		return errors.Join(failed...)
	}
	for _, s := range state.Sandboxes {
		if err := n.cri.Runtime.StopPodSandbox(cri.Quiet(ctx), s.ID); err != nil && !cri.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("stop sandbox %s: %w", s.ID, err))
		}
	}
	return errors.Join(failed...)
}

func initIndex(pod *corev1.Pod, name string) int {
	return slices.IndexFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == name })
}

func initContainer(pod *corev1.Pod, name string) *corev1.Container {
	if i := initIndex(pod, name); i >= 0 {
		return &pod.Spec.InitContainers[i]
	}
	return nil
}

// reset stops containers without grace and has the runtime forget them, in their order. Their logs stay: they say how often each was
// started.
func (w *worker) reset(ctx context.Context, pod *corev1.Pod, list []decide.Reset) error {
	n := w.n
	for _, r := range list {
		spec := podspec.Container(pod, r.Name)
		if r.Kill {
			n.containerEvent(pod, spec, corev1.EventTypeNormal, "Killing", "killing")
			if err := n.stopContainer(ctx, pod, spec, r.ID, 0); err != nil {
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
	seconds := grace(pod)
	switch {
	case k.Reason == "liveness" && spec.LivenessProbe != nil && spec.LivenessProbe.TerminationGracePeriodSeconds != nil:
		seconds = *spec.LivenessProbe.TerminationGracePeriodSeconds
	case k.Reason == "startup" && spec.StartupProbe != nil && spec.StartupProbe.TerminationGracePeriodSeconds != nil:
		seconds = *spec.StartupProbe.TerminationGracePeriodSeconds
	}
	n.containerEvent(pod, spec, corev1.EventTypeNormal, "Killing", k.Message)
	return n.stopContainer(ctx, pod, spec, k.ID, seconds)
}

// stopContainer runs the preStop hook and stops the container, both within the grace.
func (n *node) stopContainer(ctx context.Context, pod *corev1.Pod, spec *corev1.Container, id string, grace int64) error {
	if spec.Lifecycle != nil && spec.Lifecycle.PreStop != nil && grace > 0 {
		started := n.Clock.Now()
		n.preStop(ctx, pod, spec, id, time.Duration(grace)*time.Second)
		grace -= int64(n.Clock.Since(started) / time.Second)
	}
	err := n.cri.Runtime.StopContainer(cri.Quiet(ctx), id, max(grace, minGrace))
	if err != nil && !cri.IsNotFound(err) {
		return fmt.Errorf("stop container %s: %w", spec.Name, err)
	}
	return nil
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

// DeleteDeadContainers removes the containers of pods that have ended and are still in the API server.
func (n *node) DeleteDeadContainers(ctx context.Context) error {
	over := map[string]bool{}
	n.mu.Lock()
	for uid, w := range n.workers {
		over[string(uid)] = w.status != nil && !w.counted && (w.status.Phase == corev1.PodSucceeded || w.status.Phase == corev1.PodFailed)
	}
	n.mu.Unlock()
	exited := &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_EXITED}}
	dead, err := n.cri.Runtime.ListContainers(cri.Quiet(ctx), exited)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, c := range dead {
		if !over[c.Labels[podstate.LabelPodUID]] {
			continue
		}
		if err := n.cri.Runtime.RemoveContainer(cri.Quiet(ctx), c.Id); err != nil && !cri.IsNotFound(err) {
			return fmt.Errorf("remove container %s: %w", c.Id, err)
		}
	}
	return nil
}

// collectGarbage looks, when the node starts and every minute, for directories of pods
// that are no more.
func (n *node) collectGarbage(ctx context.Context) error {
	ticker := n.Clock.NewTicker(time.Minute)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		if err := n.sweep(ctx); err != nil && ctx.Err() == nil {
			n.Logger.Warn("Could not collect garbage", "err", err)
		}
	}
}

// sweep removes directories and logs of pods that no worker knows: they are left from a time
// when the node was not looking. The directory of logs may be shared with other nodes on the
// machine; only logs of pods that had a directory of ours are removed.
func (n *node) sweep(ctx context.Context) error {
	read := n.sourcesRead()
	n.mu.Lock()
	known := map[types.UID]bool{}
	for uid := range n.workers {
		known[uid] = true
	}
	n.mu.Unlock()
	if !read {
		return nil
	}
	entries, err := os.ReadDir(n.volumes.Root + "/pods")
	if err != nil {
		return fmt.Errorf("list pod directories: %w", err)
	}
	var failed []error
	for _, e := range entries {
		if uid := types.UID(e.Name()); !known[uid] {
			failed = append(failed, n.tearDown(ctx, uid), n.sweepLogs(uid))
		}
	}
	return errors.Join(failed...)
}
