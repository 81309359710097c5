// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package evict

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Observation is what was measured of one signal.
type Observation struct{ Available, Capacity int64 }

// Observations are by signal; what could not be measured is missing, and no threshold of it is met.
type Observations map[Signal]Observation

// Manager remembers what it needs from one decision to the next. It is not for concurrent use.
type Manager struct {
	Thresholds []Threshold
	// Transition is how long a condition stays after it was last seen.
	Transition time.Duration
	// MaxGrace bounds the grace of pods that a soft threshold ends, in seconds.
	MaxGrace int64
	// ImageFS says that images and writable layers lie on a file system of their own.
	ImageFS bool

	met   []Threshold // at the last decision, their grace over
	since map[Signal][2]time.Time
	seen  map[corev1.NodeConditionType]time.Time
}

// Step is what is to be done.
type Step struct {
	// Conditions are those that hold, in the order of their names.
	Conditions []corev1.NodeConditionType
	// Starved is what must be freed; nil while there is enough.
	Starved *Starvation
}

// Starvation is a resource of which there is too little.
type Starvation struct {
	Signal   Signal
	Resource corev1.ResourceName
	Hard     bool
	// Disk means that removing dead containers and unused images may help.
	Disk bool

	thresholds   []Threshold
	observations Observations
}

// Next decides by what was measured now.
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
		// What is seen now holds, even if conditions are not to stay.
		if at.Equal(now) || now.Sub(at) < m.Transition {
			out.Conditions = append(out.Conditions, condition)
		}
	}
	slices.Sort(out.Conditions)
	if len(ripe) == 0 {
		return out
	}
	// Memory comes first: it is what the kernel kills for.
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

// Enough says whether, by what was measured after something was freed, no threshold is met any more.
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

// below are the thresholds that are met; with reclaim, also those that have not got back what they are to.
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

// quantity is an amount of what the signal measures, as it is shown.
func quantity(s Signal, n int64) *resource.Quantity {
	switch s {
	case NodeFSInodesFree, ImageFSInodesFree, ContainerFSInodesFree, PIDAvailable:
		return resource.NewQuantity(n, resource.DecimalSI)
	}
	return resource.NewQuantity(n, resource.BinarySI)
}
