// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Point is one measurement of a node or a container.
type Point struct {
	Time    time.Time
	Started time.Time // of the container; zero for a node
	CPU     uint64    // nanoseconds of processor time since Started, in all cores together
	Memory  uint64    // working set in bytes
}

// complete reports whether both values were measured. A container without any is one of which the runtime has no figures.
func (p Point) complete() bool { return p.CPU > 0 && p.Memory > 0 && !p.Time.IsZero() }

// Container is one measurement of a container.
type Container struct {
	Namespace, Pod, Name string
	Point
}

// Sample is one measurement of a node and its running containers.
type Sample struct {
	Node       Point
	Containers []Container
}

type podKey struct{ namespace, name string }

// sample is a measurement whose containers are in the order of their names.
type sample struct {
	at         time.Time // of the measurement
	node       Point
	containers []Container
}

// index sorts a measurement, which then belongs to the sample.
func index(s *Sample, at time.Time) *sample {
	order := func(a, b Container) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Pod, b.Pod), strings.Compare(a.Name, b.Name))
	}
	if !slices.IsSortedFunc(s.Containers, order) {
		slices.SortStableFunc(s.Containers, order)
	}
	return &sample{at: at, node: s.Node, containers: s.Containers}
}

// pod returns the containers of a pod.
func (s *sample) pod(key podKey) []Container {
	at := 0
	return s.near(key, &at)
}

// near is pod for a pod that was likely found at a place before. It notes the place.
func (s *sample) near(key podKey, at *int) []Container {
	is := func(i int) bool { return s.containers[i].Pod == key.name && s.containers[i].Namespace == key.namespace }
	if i := *at; i >= len(s.containers) || !is(i) || i > 0 && is(i-1) {
		from, found := slices.BinarySearchFunc(s.containers, key, func(c Container, key podKey) int {
			return cmp.Or(strings.Compare(c.Namespace, key.namespace), strings.Compare(c.Pod, key.name))
		})
		if !found {
			return nil
		}
		*at = from
	}
	to := *at + 1
	for to < len(s.containers) && is(to) {
		to++
	}
	return s.containers[*at:to]
}

// usage is what was used in a window that ended at a time.
type usage struct {
	at     time.Time
	window time.Duration
	cpu    uint64 // nanocores
	memory uint64 // bytes
}

// list returns the usage in the formats of metrics-server.
func (u usage) list() corev1.ResourceList {
	cpu := *resource.NewScaledQuantity(int64(u.cpu), resource.Nano)
	return corev1.ResourceList{
		corev1.ResourceCPU: cpu, corev1.ResourceMemory: *resource.NewQuantity(int64(u.memory), resource.BinarySI),
	}
}

// between returns the usage between two measurements; false: they are not of the same life.
func between(last, prev Point) (usage, bool) {
	window := last.Time.Sub(prev.Time)
	if window <= 0 || last.CPU < prev.CPU || last.Started.Before(prev.Started) {
		return usage{}, false
	}
	cpu := float64(last.CPU-prev.CPU) / window.Seconds()
	return usage{at: last.Time, window: window, cpu: uint64(cpu), memory: last.Memory}, true
}

// nodeUsage returns the usage of the node itself; false: it was not measured twice.
func nodeUsage(last, prev *sample) (usage, bool) {
	if last == nil || prev == nil || !last.node.complete() || !prev.node.complete() {
		return usage{}, false
	}
	return between(last.node, prev.node)
}

// podsUsage is the usage of a pod's containers; at and window are those of the oldest measurement.
type podsUsage struct {
	at         time.Time
	window     time.Duration
	containers []containerUsage
}

type containerUsage struct {
	name string
	usage
}

// youngest is the age from which the usage since a container's start stands for a first measurement.
const youngest = 10 * time.Second

// podUsage returns the usage of a pod; false: one of its containers was not measured twice since it started.
func podUsage(last, prev *sample, key podKey) (podsUsage, bool) {
	var out podsUsage
	if last == nil || prev == nil {
		return out, false
	}
	known := each(last.pod(key), prev.pod(key), prev.at, func(c *Container, u usage) {
		out.containers = append(out.containers, containerUsage{c.Name, u})
		if out.at.IsZero() || out.at.After(u.at) {
			out.at, out.window = u.at, u.window
		}
	})
	return out, known && len(out.containers) > 0
}

// each computes the usage of a pod's containers, of their measurements now and before, at the begin of the window; false: one of them was
// not measured twice since it started.
func each(now, before []Container, begin time.Time, take func(c *Container, u usage)) bool {
	for i := range now {
		c := &now[i]
		if !c.complete() {
			return false
		}
		from, ok := earlier(c, before, begin)
		if !ok {
			return false
		}
		if u, ok := between(c.Point, from); ok { // a counter that went backwards says nothing; the other containers do
			take(c, u)
		}
	}
	return true
}

// earlier returns the measurement that a container's usage is counted from: its previous one, or its start if that came later.
func earlier(c *Container, before []Container, begin time.Time) (Point, bool) {
	for i := range before {
		if p := &before[i]; p.Name == c.Name && c.Started.Before(p.Time) {
			return p.Point, p.complete()
		}
	}
	if c.Started.After(begin) && c.Time.Sub(c.Started) >= youngest {
		return Point{Time: c.Started, Started: c.Started}, true
	}
	return Point{}, false
}
