// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package fair

import (
	"math"
	"sort"
	"time"
)

// Gauge measures for how long the ratio of two numbers was in which range: a histogram of time.
type Gauge struct {
	Bounds []float64
	Counts []int64 // nanoseconds at or below each bound, and above the last
	Sum    float64 // integral of the ratio, in nanoseconds

	value, of, ratio float64
	at               int // the bucket of the ratio
	since            time.Time
}

// NewGauge makes a gauge of a number that starts at 0, relative to of.
func NewGauge(now time.Time, bounds []float64, of float64) Gauge {
	g := Gauge{Bounds: bounds, Counts: make([]int64, len(bounds)+1), of: of, since: now}
	g.Set(now, 0)
	return g
}

// Tell adds the time until now, in which nothing changed.
func (g *Gauge) Tell(now time.Time) {
	if d := now.Sub(g.since); d > 0 {
		g.Counts[g.at] += int64(d)
		g.Sum += g.ratio * float64(d)
		g.since = now
	}
}

// Set changes the value.
func (g *Gauge) Set(now time.Time, v float64) {
	g.Tell(now)
	g.value = v
	g.locate()
}

// SetOf changes the number to which the value is relative.
func (g *Gauge) SetOf(now time.Time, of float64) {
	g.Tell(now)
	g.of = of
	g.locate()
}

func (g *Gauge) locate() {
	g.ratio = 0
	if g.of != 0 {
		g.ratio = g.value / g.of
	}
	i := 0
	for i < len(g.Bounds) && g.ratio > g.Bounds[i] {
		i++
	}
	g.at = i
}

// Histogram counts values by size.
type Histogram struct {
	Bounds []float64
	Counts []uint64
	Sum    float64
	N      uint64
}

// Observe counts a value.
func (h *Histogram) Observe(v float64) {
	if h.Counts == nil {
		h.Counts = make([]uint64, len(h.Bounds)+1)
	}
	h.Counts[sort.SearchFloat64s(h.Bounds, v)]++
	h.Sum += v
	h.N++
}

// Demand integrates the number of requested seats over time, since the last reset.
type Demand struct {
	x, high    float64
	since      time.Time
	t, tx, tx2 float64
}

// Demanded is the result of a [Demand]: mean and deviation over time, and the maximum.
type Demanded struct{ Seconds, Average, Deviation, High float64 }

func (d *Demand) tell(now time.Time) {
	dt := now.Sub(d.since).Seconds()
	d.since = now
	d.t, d.tx, d.tx2 = d.t+dt, d.tx+d.x*dt, d.tx2+d.x*d.x*dt
}

func (d *Demand) set(now time.Time, x float64) {
	if x != d.x {
		d.tell(now)
		d.x = x
		d.high = max(d.high, x)
	}
}

// reset returns the result and starts again.
func (d *Demand) reset(now time.Time) Demanded {
	d.tell(now)
	out := Demanded{Seconds: d.t, High: d.high}
	if d.t > 0 {
		out.Average = d.tx / d.t
		out.Deviation = math.Sqrt(max(0, d.tx2/d.t-out.Average*out.Average))
	}
	d.t, d.tx, d.tx2, d.high = 0, 0, 0, d.x
	return out
}
