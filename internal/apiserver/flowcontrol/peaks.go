// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package flowcontrol

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mortise-dev/mortise/internal/apiserver/flowcontrol/fair"
)

// peaks are the maximum numbers of running and waiting requests, for reads and for writes.
type peaks [2]kindPeaks

// kindPeaks are the numbers of read-only or of mutating requests.
type kindPeaks struct {
	peak counter

	mu               sync.Mutex
	running, waiting int
	ran, waited      fair.Gauge
}

var kindBounds = []float64{0, 0.001, 0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1}

func (p *peaks) begin(now time.Time) {
	for i := range p {
		p[i].ran, p[i].waited = fair.NewGauge(now, kindBounds, 1), fair.NewGauge(now, kindBounds, 1)
	}
}

// bound sets the maximum numbers of running and waiting requests, to which the gauges relate.
func (p *peaks) bound(now time.Time, running, waiting int) {
	for i := range p {
		k := &p[i]
		k.mu.Lock()
		k.ran.SetOf(now, float64(running))
		k.waited.SetOf(now, float64(waiting))
		k.mu.Unlock()
	}
}

func (p *peaks) of(writes bool) *kindPeaks {
	if writes {
		return &p[1]
	}
	return &p[0]
}

func (p *peaks) run(writes bool, by int, now time.Time) {
	k := p.of(writes)
	if n := k.peak.now.Add(int64(by)); by > 0 {
		k.peak.reach(now, n)
	}
	k.mu.Lock()
	k.running += by
	k.ran.Set(now, float64(k.running))
	k.mu.Unlock()
}

func (p *peaks) wait(writes bool, by int, now time.Time) {
	k := p.of(writes)
	k.mu.Lock()
	k.waiting += by
	k.waited.Set(now, float64(k.waiting))
	k.mu.Unlock()
}

func (p *peaks) collect(out []prometheus.Metric, i int, kind string, now time.Time) []prometheus.Metric {
	k := &p[i]
	k.mu.Lock()
	defer k.mu.Unlock()
	return append(out, timed(readWrite, &k.ran, now, "executing", kind), timed(readWrite, &k.waited, now, "waiting", kind))
}

// Peaks returns the maximum number of concurrent requests in the last second.
func (c *Controller) Peaks(now time.Time) (reads, writes int64) {
	return c.peaks[0].peak.at(now), c.peaks[1].peak.at(now)
}
