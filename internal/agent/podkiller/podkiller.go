// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podkiller stops pods and single containers within their grace periods, and removes ended ones from the runtime.
package podkiller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/decide"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/agent/runconfig"
)

// minGrace is the minimum time between SIGTERM and SIGKILL.
const minGrace = 2

// Hooks runs the lifecycle handlers of containers.
type Hooks interface {
	// PreStop runs the container's preStop handler, at most for the limit.
	PreStop(ctx context.Context, pod *corev1.Pod, c *corev1.Container, id string, limit time.Duration)
}

// Config configures a Killer. All fields are required.
type Config struct {
	Runtime *cri.Client
	Hooks   Hooks
	Logs    runconfig.Node // locates the logs
	Events  record.EventRecorder
	Clock   clock.PassiveClock
}

// Killer stops pods. It has no state but its configuration.
type Killer struct{ Config }

// New makes the killer.
func New(c Config) *Killer { return &Killer{c} }

// StopPod stops the pod's containers concurrently, then sidecars in reverse order, then the sandboxes.
func (k *Killer) StopPod(ctx context.Context, pod *corev1.Pod, state *podstate.Pod, grace int64) error {
	started := k.Clock.Now()
	left := func() int64 { return max(grace-int64(k.Clock.Since(started)/time.Second), 0) }
	var sidecars []*podstate.Container
	var all sync.WaitGroup
	var mu sync.Mutex
	var failed []error
	stop := func(c *podstate.Container) {
		spec := podspec.Container(pod, c.Name)
		if spec == nil {
			spec = &corev1.Container{Name: c.Name}
		}
		k.Events.Event(podspec.ContainerReference(pod, spec), corev1.EventTypeNormal, "Killing", "Stopping container "+c.Name)
		if err := k.StopContainer(ctx, pod, spec, c.ID, left()); err != nil {
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
	// The sidecar that started last stops first.
	slices.SortStableFunc(sidecars, func(a, b *podstate.Container) int { return initIndex(pod, b.Name) - initIndex(pod, a.Name) })
	for _, c := range sidecars {
		stop(c)
	}
	if len(failed) > 0 {
		return errors.Join(failed...)
	}
	for _, s := range state.Sandboxes {
		if err := k.Runtime.Runtime.StopPodSandbox(cri.Quiet(ctx), s.ID); err != nil && !cri.IsNotFound(err) {
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

// StopContainer runs the preStop hook and stops the container, both within the grace period.
func (k *Killer) StopContainer(ctx context.Context, pod *corev1.Pod, spec *corev1.Container, id string, grace int64) error {
	if spec.Lifecycle != nil && spec.Lifecycle.PreStop != nil && grace > 0 {
		started := k.Clock.Now()
		k.Hooks.PreStop(ctx, pod, spec, id, time.Duration(grace)*time.Second)
		grace -= int64(k.Clock.Since(started) / time.Second)
	}
	err := k.Runtime.Runtime.StopContainer(cri.Quiet(ctx), id, max(grace, minGrace))
	if err != nil && !cri.IsNotFound(err) {
		return fmt.Errorf("stop container %s: %w", spec.Name, err)
	}
	return nil
}

// StopOne stops one container of a pod that continues.
func (k *Killer) StopOne(ctx context.Context, pod *corev1.Pod, kill decide.Kill) error {
	spec := podspec.Container(pod, kill.Name)
	seconds := podspec.Grace(pod)
	switch {
	case kill.Reason == "liveness" && spec.LivenessProbe != nil && spec.LivenessProbe.TerminationGracePeriodSeconds != nil:
		seconds = *spec.LivenessProbe.TerminationGracePeriodSeconds
	case kill.Reason == "startup" && spec.StartupProbe != nil && spec.StartupProbe.TerminationGracePeriodSeconds != nil:
		seconds = *spec.StartupProbe.TerminationGracePeriodSeconds
	}
	k.Events.Event(podspec.ContainerReference(pod, spec), corev1.EventTypeNormal, "Killing", kill.Message)
	return k.StopContainer(ctx, pod, spec, kill.ID, seconds)
}

// Reset stops containers immediately and removes them from the runtime, in the given order. Their logs stay, because they record the number
// of restarts.
func (k *Killer) Reset(ctx context.Context, pod *corev1.Pod, list []decide.Reset) error {
	for _, r := range list {
		spec := podspec.Container(pod, r.Name)
		if r.Kill {
			k.Events.Event(podspec.ContainerReference(pod, spec), corev1.EventTypeNormal, "Killing", "killing")
			if err := k.StopContainer(ctx, pod, spec, r.ID, 0); err != nil {
				return err
			}
		}
		if err := k.Runtime.Runtime.RemoveContainer(cri.Quiet(ctx), r.ID); err != nil && !cri.IsNotFound(err) {
			return fmt.Errorf("remove container %s: %w", r.Name, err)
		}
	}
	return nil
}
