// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cpumanager

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Container is a created or running container of the runtime.
type Container struct{ ID, Pod, Name string }

// Runtime is the container runtime.
type Runtime interface {
	// Containers lists the created and running containers of pods.
	Containers(ctx context.Context) ([]Container, error)
	// SetCPUs moves a container to other CPUs.
	SetCPUs(ctx context.Context, id, cpus string) error
}

// sharing moves containers to other CPUs when the shared ones change: each change, and the start of the node, is an event. kubelet compares
// every ten seconds (cpuManagerReconcilePeriod), so that after an allocation others run on the exclusive CPUs for as long. Here the period
// is the time after which a container that could not be moved is tried again.
type sharing struct {
	m      *Manager
	events chan struct{} // of one
	// applied are the CPUs of running containers, by ID. It belongs to run.
	applied map[string]string
}

func newSharing(m *Manager) *sharing {
	return &sharing{m: m, events: make(chan struct{}, 1), applied: map[string]string{}}
}

// kick makes run compare.
func (s *sharing) kick() {
	select {
	case s.events <- struct{}{}:
	default:
	}
}

func (s *sharing) run(ctx context.Context) error {
	if s.m.policy == nil && !s.m.widening() {
		return nil
	}
	s.kick()
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.events:
		case <-retry:
		}
		retry = nil
		if err := s.apply(ctx); err != nil && ctx.Err() == nil {
			s.m.c.Logger.Warn("Could not move containers to their CPUs; will retry", "err", err, "after", s.m.c.Retry)
			retry = s.m.c.Clock.After(s.m.c.Retry)
		} else if s.m.policy == nil && err == nil {
			return s.m.widened()
		}
	}
}

// apply moves the containers whose CPUs differ from what they should be.
func (s *sharing) apply(ctx context.Context) error {
	list, err := s.m.c.Runtime.Containers(ctx)
	if err != nil {
		return err //nolint:wrapcheck // the runtime says what it did
	}
	running := map[string]string{}
	var failed []error
	for _, c := range list {
		want, have := s.m.wanted(c)
		if applied, ok := s.applied[c.ID]; ok {
			have = applied
		}
		if have != want {
			if err := s.m.c.Runtime.SetCPUs(ctx, c.ID, want); err != nil {
				failed = append(failed, fmt.Errorf("container %s of pod %s: %w", c.Name, c.Pod, err))
				continue
			}
			s.m.moved(c, want)
		}
		running[c.ID] = want
	}
	s.applied = running
	return errors.Join(failed...)
}

// wanted returns the CPUs that a container should have, and those with which it was created, if this process has created it.
func (m *Manager) wanted(c Container) (want, created string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.policy == nil {
		return m.c.Topology.All().String(), ""
	}
	return m.cpusOf(c.Pod, c.Name).String(), m.given[containerName{c.Pod, c.Name}]
}

// moved notes the CPUs that a container has got.
func (m *Manager) moved(c Container, cpus string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if name := (containerName{c.Pod, c.Name}); m.given[name] != "" {
		m.given[name] = cpus
	}
}
