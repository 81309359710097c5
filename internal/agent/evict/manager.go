// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package evict

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Observation is the measurement of one signal.
type Observation struct{ Available, Capacity int64 }

// Observations are the measurements by signal. If a measurement is missing, no threshold of the signal is met.
type Observations map[Signal]Observation

// Manager keeps the state between decisions. It is not safe for concurrent use.
type Manager struct {
	Thresholds []Threshold
	// Transition is how long a condition persists after it was last observed.
	Transition time.Duration
	// MaxGrace limits the grace period of pods that a soft threshold evicts, in seconds.
	MaxGrace int64
	// ImageFS means that images and writable layers are on their own file system.
	ImageFS bool

	met   []Threshold // at the last decision, with expired grace periods
	since map[Signal][2]time.Time
	seen  map[corev1.NodeConditionType]time.Time
}

// Step is the result of a decision.
type Step struct {
	// Conditions are the current conditions, sorted by name.
	Conditions []corev1.NodeConditionType
	// Starved is the resource to reclaim; nil: no resource is starved.
	Starved *Starvation
}

// Starvation is a starved resource.
type Starvation struct {
	Signal   Signal
	Resource corev1.ResourceName
	Hard     bool
	// Disk means that removing dead containers and unused images may help.
	Disk bool

	thresholds   []Threshold
	observations Observations
}

// Next decides by the current measurements.
func (m *Manager) Next(now time.Time, seen Observations) Step {
	met := below(m.Thresholds, seen, false)
	for _, t := range below(m.met, seen, true) {
		if !slices.ContainsFunc(met, func(o Threshold) bool { return o.Signal == t.Signal && o.Grace == t.Grace }) {
			met = append(met, t)
		}
	}
	since := map[Signal][2]time.Time{}
	var ripe []Threshold
	for _, t := range met {
		at, first := since[t.Signal], m.since[t.Signal][kind(t)]
		if first.IsZero() {
			first = now
		}
		at[kind(t)] = first
		since[t.Signal] = at
		if now.Sub(first) >= t.Grace {
			ripe = append(ripe, t)
		}
	}
	m.since, m.met = since, ripe

	if m.seen == nil {
		m.seen = map[corev1.NodeConditionType]time.Time{}
	}
	for _, t := range met {
		meaning, _ := meaningOf(t.Signal)
		m.seen[meaning.condition] = now
	}
	var out Step
	for condition, at := range m.seen {
		// An observed condition holds even if conditions do not persist.
		if at.Equal(now) || now.Sub(at) < m.Transition {
			out.Conditions = append(out.Conditions, condition)
		}
	}
	slices.Sort(out.Conditions)
	if len(ripe) == 0 {
		return out
	}
	// Memory comes first, because the kernel kills processes for it.
	slices.SortStableFunc(ripe, func(a, b Threshold) int { return order(a) - order(b) })
	meaning, _ := meaningOf(ripe[0].Signal)
	out.Starved = &Starvation{
		Signal: ripe[0].Signal, Resource: meaning.resource, Hard: ripe[0].Hard(),
		Disk: meaning.condition == corev1.NodeDiskPressure &&
			(!m.ImageFS || ripe[0].Signal != NodeFSAvailable && ripe[0].Signal != NodeFSInodesFree),
		thresholds: ripe, observations: seen,
	}
	return out
}

// Enough reports whether no threshold is met any more, by measurements after a reclaim.
func (m *Manager) Enough(seen Observations) bool { return len(below(m.Thresholds, seen, true)) == 0 }

func kind(t Threshold) int {
	if t.Hard() {
		return 0
	}
	return 1
}

func order(t Threshold) int {
	if t.Signal == MemoryAvailable || t.Signal == AllocatableMemoryAvailable {
		return 0
	}
	return 1
}

// below returns the met thresholds; with reclaim, also those whose minimum reclaim is not reached.
func below(thresholds []Threshold, seen Observations, reclaim bool) []Threshold {
	var out []Threshold
	for _, t := range thresholds {
		o, ok := seen[t.Signal]
		if !ok {
			continue
		}
		want := t.Value.Of(o.Capacity)
		if reclaim && t.MinReclaim != nil {
			want.Add(t.MinReclaim.Of(o.Capacity))
		}
		if want.Value() > o.Available {
			out = append(out, t)
		}
	}
	return out
}

// quantity formats an amount in the signal's unit.
func quantity(s Signal, n int64) *resource.Quantity {
	switch s {
	case NodeFSInodesFree, ImageFSInodesFree, ContainerFSInodesFree, PIDAvailable:
		return resource.NewQuantity(n, resource.DecimalSI)
	}
	return resource.NewQuantity(n, resource.BinarySI)
}
