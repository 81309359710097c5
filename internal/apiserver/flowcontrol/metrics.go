// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package flowcontrol

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mortise-dev/mortise/internal/apiserver/flowcontrol/fair"
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("apiserver_flowcontrol_"+name, help, labels, nil)
}

const (
	labelLevel  = "priority_level"
	labelSchema = "flow_schema"
)

// The metrics have upstream's names, help texts, labels and buckets.
var (
	rejected = describe("rejected_requests_total", "[BETA] Number of requests rejected by API Priority and Fairness subsystem", labelLevel,
		labelSchema, "reason")
	dispatched = describe("dispatched_requests_total", "[BETA] Number of requests executed by API Priority and Fairness subsystem", labelLevel,
		labelSchema)
	held = prometheus.NewDesc("apiserver_flowcontrol_priority_level_seat_utilization",
		"EXPERIMENTAL: [ALPHA] Observations, at the end of every nanosecond, of utilization of seats for any stage of execution (but only initial stage for WATCHes)", []string{labelLevel}, prometheus.Labels{"phase": "executing"})
	requests = describe("priority_level_request_utilization",
		"EXPERIMENTAL: [ALPHA] Observations, at the end of every nanosecond, of number of requests (as a fraction of the relevant limit) waiting or in any stage of execution (but only initial stage for WATCHes)", "phase", labelLevel)
	currentR  = describe("current_r", "[ALPHA] R(time of last change)", labelLevel)
	dispatchR = describe("dispatch_r", "[ALPHA] R(time of last dispatch)", labelLevel)
	latestS   = describe("latest_s", "[ALPHA] S(most recently dispatched request)", labelLevel)
	nextS     = describe("next_s_bounds", "[ALPHA] min and max, over queues, of S(oldest waiting request in queue)", labelLevel, "bound")
	nextLessS = describe("next_discounted_s_bounds",
		"[ALPHA] min and max, over queues, of S(oldest waiting request in queue) - estimated work in progress", labelLevel, "bound")
	queued = describe("current_inqueue_requests",
		"[BETA] Number of requests currently pending in queues of the API Priority and Fairness subsystem", labelLevel, labelSchema)
	queuedSeat = describe("current_inqueue_seats",
		"[ALPHA] Number of seats currently pending in queues of the API Priority and Fairness subsystem", labelLevel, labelSchema)
	lengths = describe("request_queue_length_after_enqueue",
		"[ALPHA] Length of queue in the API Priority and Fairness subsystem, as seen by each request after it is enqueued", labelLevel,
		labelSchema)
	running = describe("current_executing_requests",
		"[BETA] Number of requests in initial (for a WATCH) or any (for a non-WATCH) execution stage in the API Priority and Fairness subsystem",
		labelLevel, labelSchema)
	runSeats = describe("current_executing_seats",
		"[BETA] Concurrency (number of seats) occupied by the currently executing (initial stage for a WATCH, any stage otherwise) requests in the API Priority and Fairness subsystem", labelLevel, labelSchema)
	waited = describe("request_wait_duration_seconds", "[BETA] Length of time a request spent waiting in its queue", labelLevel,
		labelSchema, "execute")
	ran = describe("request_execution_seconds",
		"[ALPHA] Duration of initial stage (for a WATCH) or any (for a non-WATCH) stage of request execution in the API Priority and Fairness subsystem", labelLevel, labelSchema, "type")
	watchCount = describe("watch_count_samples", "[ALPHA] count of watchers for mutating requests in API Priority and Fairness", labelLevel,
		labelSchema)
	epochs = describe("epoch_advance_total", "[ALPHA] Number of times the queueset's progress meter jumped backward", labelLevel,
		"success")
	estimates = describe("work_estimated_seats",
		"[ALPHA] Number of estimated seats (maximum of initial and final seats) associated with requests in API Priority and Fairness",
		labelLevel, labelSchema)
	stuck = describe("request_dispatch_no_accommodation_total",
		"[ALPHA] Number of times a dispatch attempt resulted in a non accommodation due to lack of available seats", labelLevel, labelSchema)
	nominal = describe("nominal_limit_seats", "[BETA] Nominal number of execution seats configured for each priority level", labelLevel)
	lower   = describe("lower_limit_seats", "[ALPHA] Configured lower bound on number of execution seats available to each priority level",
		labelLevel)
	upper = describe("upper_limit_seats", "[ALPHA] Configured upper bound on number of execution seats available to each priority level",
		labelLevel)
	demand = describe("demand_seats",
		"EXPERIMENTAL: [ALPHA] Observations, at the end of every nanosecond, of (the number of seats each priority level could use) / (nominal number of seats for that level)", labelLevel)
	demandHigh = describe("demand_seats_high_watermark", "[ALPHA] High watermark, over last adjustment period, of demand_seats", labelLevel)
	demandAvg  = describe("demand_seats_average", "[ALPHA] Time-weighted average, over last adjustment period, of demand_seats", labelLevel)
	demandDev  = describe("demand_seats_stdev", "[ALPHA] Time-weighted standard deviation, over last adjustment period, of demand_seats",
		labelLevel)
	demandSoft = describe("demand_seats_smoothed", "[ALPHA] Smoothed seat demands", labelLevel)
	target     = describe("target_seats", "[ALPHA] Seat allocation targets", labelLevel)
	fairFrac   = describe("seat_fair_frac", "[ALPHA] Fair fraction of server's concurrency to allocate to each priority level that can use it")
	readWrite  = describe("read_vs_write_current_requests",
		"EXPERIMENTAL: [ALPHA] Observations, at the end of every nanosecond, of the number of requests (as a fraction of the relevant limit) waiting or in regular stage of execution", "phase", "request_kind")
	current = describe("current_limit_seats", "[ALPHA] current derived number of execution seats available to each priority level", labelLevel)
)

// Describe implements [prometheus.Collector].
func (c *Controller) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		rejected, dispatched, held, requests, currentR, dispatchR, latestS, nextS, nextLessS, queued, queuedSeat, lengths, running, runSeats,
		waited, ran, watchCount,
		epochs, estimates, stuck, nominal, lower, upper, demand, demandHigh, demandAvg, demandDev, demandSoft, target, fairFrac, current,
		readWrite,
	} {
		to <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *Controller) Collect(to chan<- prometheus.Metric) {
	now := c.o.Now()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	c.mu.Lock()
	gauge(fairFrac, c.fair)
	for name, l := range c.levels {
		gauge(nominal, float64(l.nominal), name)
		gauge(lower, float64(l.least), name)
		gauge(upper, float64(l.most), name)
		gauge(current, float64(l.current), name)
		gauge(demandHigh, l.wanted.High, name)
		gauge(demandAvg, l.wanted.Average, name)
		gauge(demandDev, l.wanted.Deviation, name)
		gauge(demandSoft, l.smoothed, name)
		gauge(target, l.target, name)
	}
	c.mu.Unlock()
	var out []prometheus.Metric // collected first and sent without a lock, because the receiver may be slow
	c.each(func(l *level) { out = l.collect(out, now) })
	for i, kind := range []string{"readOnly", "mutating"} {
		out = c.peaks.collect(out, i, kind, now)
	}
	for _, m := range out {
		to <- m
	}
}

// timed returns the time histogram of a gauge.
func timed(d *prometheus.Desc, g *fair.Gauge, now time.Time, labels ...string) prometheus.Metric {
	g.Tell(now)
	buckets, n := map[float64]uint64{}, int64(0)
	for i, b := range g.Bounds {
		n += g.Counts[i]
		buckets[b] = uint64(n)
	}
	n += g.Counts[len(g.Bounds)]
	return prometheus.MustNewConstHistogram(d, uint64(n), g.Sum, buckets, labels...)
}

func (l *level) collect(out []prometheus.Metric, now time.Time) []prometheus.Metric {
	add := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		out = append(out, prometheus.MustNewConstMetric(d, kind, v, labels...))
	}
	times := func(d *prometheus.Desc, g *fair.Gauge, labels ...string) {
		out = append(out, timed(d, g, now, labels...))
	}
	values := func(d *prometheus.Desc, h *fair.Histogram, labels ...string) {
		if h.N == 0 {
			return
		}
		buckets, n := map[float64]uint64{}, uint64(0)
		for i, b := range h.Bounds {
			n += h.Counts[i]
			buckets[b] = n
		}
		out = append(out, prometheus.MustNewConstHistogram(d, h.N, h.Sum, buckets, labels...))
	}
	times(held, &l.set.Held, l.name)
	times(requests, &l.set.Waiting, "waiting", l.name)
	times(requests, &l.set.Running, "executing", l.name)
	times(demand, &l.set.Wanted, l.name)
	add(currentR, prometheus.GaugeValue, l.set.R().Float(), l.name)
	if last := l.set.Last(); last.Seen {
		add(dispatchR, prometheus.GaugeValue, last.R.Float(), l.name)
		add(latestS, prometheus.GaugeValue, last.S.Float(), l.name)
		add(nextS, prometheus.GaugeValue, last.Min.Float(), l.name, "min")
		add(nextS, prometheus.GaugeValue, last.Max.Float(), l.name, "max")
		add(nextLessS, prometheus.GaugeValue, last.LessMin.Float(), l.name, "min")
		add(nextLessS, prometheus.GaugeValue, last.LessMax.Float(), l.name, "max")
	}
	if l.set.Epochs > 0 {
		add(epochs, prometheus.CounterValue, float64(l.set.Epochs), l.name, "true")
	}
	for name, f := range l.flows {
		for reason, n := range map[string]uint64{"queue-full": f.Full, "concurrency-limit": f.Busy, "time-out": f.Late} {
			if n > 0 {
				add(rejected, prometheus.CounterValue, float64(n), l.name, name, reason)
			}
		}
		if f.EverQueued {
			add(queued, prometheus.GaugeValue, float64(f.Queued), l.name, name)
			add(queuedSeat, prometheus.GaugeValue, float64(f.QueuedSeats), l.name, name)
		}
		if f.EverRan {
			add(dispatched, prometheus.CounterValue, float64(f.Dispatched), l.name, name)
			add(running, prometheus.GaugeValue, float64(f.Running), l.name, name)
			add(runSeats, prometheus.GaugeValue, float64(f.RunningSeats), l.name, name)
		}
		if f.Stuck > 0 {
			add(stuck, prometheus.CounterValue, float64(f.Stuck), l.name, name)
		}
		values(waited, &f.Waited, l.name, name, "true")
		values(waited, &f.Refused, l.name, name, "false")
		values(ran, &f.Ran, l.name, name, "regular")
		values(ran, &f.Watched, l.name, name, "watch")
		values(lengths, &f.Lengths, l.name, name)
		values(estimates, &f.Widths, l.name, name)
		values(watchCount, &f.Watchers, l.name, name)
	}
	return out
}
