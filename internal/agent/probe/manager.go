// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// Instance is a running container to probe.
type Instance struct {
	Pod       *corev1.Pod
	Container *corev1.Container
	ID        string // of the container in the runtime
	Started   time.Time
	PodIP     string
}

// Manager probes containers. Its methods may be called concurrently.
type Manager struct {
	Prober *Prober
	Clock  clock.WithTicker
	// Changed is called after the result of a probe of a pod's container has changed.
	Changed func(uid types.UID)
	// Report is called for results that deserve an event: "Liveness", "Readiness", "Startup".
	Report func(in Instance, kind string, result Result, output string, err error)
	// Metrics count attempts; nil: nothing does.
	Metrics *Metrics

	mu       sync.Mutex
	watched  map[string]*watched // by container ID
	finished sync.WaitGroup
}

type watched struct {
	uid    types.UID
	cancel context.CancelFunc

	hasReadiness, hasStartup bool
	ready, started           bool
	failed                   string
	ending                   bool
}

// Ensure starts to probe the container, unless it is being probed.
func (m *Manager) Ensure(ctx context.Context, in Instance) {
	c := in.Container
	if c.LivenessProbe == nil && c.ReadinessProbe == nil && c.StartupProbe == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.watched == nil {
		m.watched = map[string]*watched{}
	}
	if m.watched[in.ID] != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &watched{uid: in.Pod.UID, cancel: cancel, hasReadiness: c.ReadinessProbe != nil, hasStartup: c.StartupProbe != nil,
		started: c.StartupProbe == nil}
	m.watched[in.ID] = w
	m.finished.Go(func() { m.watch(ctx, w, in) })
}

// Keep stops the probes of all of the pod's containers except those with the given IDs.
func (m *Manager) Keep(uid types.UID, ids map[string]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, w := range m.watched {
		if w.uid == uid && !ids[id] {
			w.cancel()
			delete(m.watched, id)
		}
	}
	if len(ids) == 0 {
		m.Metrics.forget(uid)
	}
}

// Ending notes that the pod is being ended: from now on only failures of readiness probes count.
func (m *Manager) Ending(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.watched {
		if w.uid == uid {
			w.ending = true
		}
	}
}

// Wait returns when all goroutines have ended; their contexts must be done.
func (m *Manager) Wait() { m.finished.Wait() }

// Started reports whether the running container has passed its startup probe or has none.
func (m *Manager) Started(container *corev1.Container, id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.watched[id]; w != nil {
		return w.started
	}
	return container.StartupProbe == nil
}

// Ready reports whether the running container passes its readiness probe or has none.
func (m *Manager) Ready(container *corev1.Container, id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.watched[id]; w != nil && w.hasReadiness {
		return w.ready
	}
	return container.ReadinessProbe == nil
}

// Failed returns the pod's containers that must be restarted, with the failed probe.
func (m *Manager) Failed(uid types.UID) map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]string{}
	for id, w := range m.watched {
		if w.uid == uid && w.failed != "" {
			out[id] = w.failed
		}
	}
	return out
}

// Adopt restores results from before a restart of the node: a ready container stays ready until a probe fails.
func (m *Manager) Adopt(id string, started, ready bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.watched[id]; w != nil {
		w.started, w.ready = w.started || started, w.ready || ready
	}
}

// watch runs the startup probe until it succeeds, then the other two concurrently.
func (m *Manager) watch(ctx context.Context, w *watched, in Instance) {
	c := in.Container
	m.mu.Lock()
	started := w.started
	m.mu.Unlock()
	if c.StartupProbe != nil && !started {
		passed := false
		m.run(ctx, w, in, c.StartupProbe, "Startup", func(ok bool) bool {
			passed = ok
			m.set(w, func() {
				if ok {
					w.started = true
				} else if !w.ending {
					w.failed = "startup"
				}
			})
			return false
		})
		if !passed {
			return
		}
	}
	var both sync.WaitGroup
	if c.LivenessProbe != nil {
		both.Go(func() {
			m.run(ctx, w, in, c.LivenessProbe, "Liveness", func(ok bool) bool {
				if !ok {
					m.set(w, func() {
						if !w.ending {
							w.failed = "liveness"
						}
					})
				}
				return ok
			})
		})
	}
	if c.ReadinessProbe != nil {
		both.Go(func() {
			m.run(ctx, w, in, c.ReadinessProbe, "Readiness", func(ok bool) bool {
				m.set(w, func() { w.ready = ok })
				return true
			})
		})
	}
	both.Wait()
}

// set changes the results, and calls Changed if that makes a difference.
func (m *Manager) set(w *watched, change func()) {
	m.mu.Lock()
	before := *w
	change()
	changed := before.ready != w.ready || before.started != w.started || before.failed != w.failed
	m.mu.Unlock()
	if changed {
		m.Changed(w.uid)
	}
}

// run probes until ctx is done or verdict returns false. It calls verdict when as many consecutive results agree as the threshold requires.
func (m *Manager) run(ctx context.Context, w *watched, in Instance, probe *corev1.Probe, kind string, verdict func(ok bool) bool) {
	delay := time.Duration(probe.InitialDelaySeconds)*time.Second - m.Clock.Since(in.Started)
	period := time.Duration(max(probe.PeriodSeconds, 1)) * time.Second
	if !m.sleep(ctx, delay) {
		return
	}
	var last, counted = Unknown, int32(0)
	for {
		begun := m.Clock.Now()
		result, output, err := m.Prober.Attempt(ctx, probe, in.Container, in.ID, in.PodIP)
		if ctx.Err() != nil {
			return
		}
		m.Metrics.attempted(in, kind, result, m.Clock.Since(begun), err)
		if result != Success {
			m.Report(in, kind, result, output, err)
		}
		if err == nil {
			if result == Warning {
				result = Success
			}
			if result == last {
				counted++
			} else {
				last, counted = result, 1
			}
			ok := result == Success
			threshold := probe.FailureThreshold
			if ok {
				threshold = probe.SuccessThreshold
			}
			if counted >= max(threshold, 1) && !verdict(ok) {
				return
			}
		}
		if !m.sleep(ctx, period) {
			return
		}
	}
}

func (m *Manager) sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := m.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	}
}
