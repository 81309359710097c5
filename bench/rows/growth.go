// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

const (
	few       = 1000 // objects at the beginning of growth
	flat      = 1.3  // what may be called no growth, with the noise of a loaded machine
	idleTold  = 40   // writes of which idle watchers get events
	fewWrites = 300  // writes of which one watcher gets events
)

// costs is what requests cost with so many objects stored.
type costs struct {
	get, create load.Result
	watch       float64 // milliseconds from write to event, p50
	list        float64 // CPU in milliseconds, of a few objects
}

// growth stores few objects and then many others, and measures the same requests both times; then requests for the many, of
// which not all are decoded in memory; then many watchers on them.
func growth(ctx context.Context, b *bench, t *load.Target, add adder) error {
	base, err := stored(ctx, t, few)
	if err != nil {
		return err
	}
	made, err := stored(ctx, t, 0)
	if err != nil {
		return err
	}
	var serial atomic.Int64
	small, err := cost(ctx, b, t, base, made, &serial)
	if err != nil {
		return err
	}
	before, err := t.Collected(ctx)
	if err != nil {
		return err
	}
	many, err := stored(ctx, t, b.Objects)
	if err != nil {
		return err
	}
	after, err := t.Collected(ctx)
	if err != nil {
		return err
	}
	add(fmt.Sprintf("memory per object of 1 KB, %s stored", report.Number(float64(b.Objects))),
		after.Per(before, b.Objects, report.Bound{})...)
	large, err := cost(ctx, b, t, base, made, &serial)
	if err != nil {
		return err
	}
	grown := func(what string, from, to float64) {
		add(fmt.Sprintf("%s, %s → %s objects stored", what, report.Number(few), report.Number(float64(b.Objects))),
			report.Value{Text: fmt.Sprintf("%s → %s ms", report.Number(from), report.Number(to))},
			report.Value{Name: "growth", Unit: "×", Number: to / from, Bound: report.AtMost(flat)})
	}
	grown("CPU of a GET", small.get.Cpu, large.get.Cpu)
	grown("CPU of a create", small.create.Cpu, large.create.Cpu)
	grown("write → one watcher, p50", small.watch, large.watch)
	grown(fmt.Sprintf("CPU of a LIST of %s", report.Number(few)), small.list, large.list)
	if err := anyOf(ctx, b, t, add, many); err != nil {
		return err
	}
	return crowds(ctx, b, t, add, many)
}

func cost(ctx context.Context, b *bench, t *load.Target, base, made string, serial *atomic.Int64) (c costs, err error) {
	name := some(base, few)
	if c.get, err = load.Loop(ctx, t, 16, b.length(), func(ctx context.Context, client *http.Client) error {
		return load.Expect(ctx, client, http.StatusOK, "GET", name(), "", "")
	}); err != nil {
		return c, err
	}
	r, err := listing(ctx, t, min(b.length(), 3*time.Second), base, "application/json", "identity")
	if err != nil {
		return c, err
	}
	c.list = r.cpu
	client, err := t.Client(2)
	if err != nil {
		return c, err
	}
	defer client.CloseIdleConnections()
	one, err := gather(ctx, client, base, 1)
	if err != nil {
		return c, err
	}
	all, err := latencies(ctx, t, one, base, fewWrites)
	one.close()
	if err != nil {
		return c, err
	}
	c.watch = load.Quantile(all, 50)
	c.create, err = load.Loop(ctx, t, 16, b.length(), func(ctx context.Context, client *http.Client) error {
		return load.Expect(ctx, client, http.StatusCreated, "POST", made, "application/json",
			configMap(fmt.Sprint("g-", serial.Add(1)), kilobyte))
	})
	return c, err
}

// anyOf is what the many objects cost, most of which must be decoded each time.
func anyOf(ctx context.Context, b *bench, t *load.Target, add adder, many string) error {
	name := some(many, b.Objects)
	get, err := load.Loop(ctx, t, 16, b.length(), func(ctx context.Context, client *http.Client) error {
		return load.Expect(ctx, client, http.StatusOK, "GET", name(), "", "")
	})
	if err != nil {
		return err
	}
	add(fmt.Sprintf("GET of any of %s objects, 16 clients", report.Number(float64(b.Objects))),
		get.Values(report.Bound{}, report.ShareOf(upstreamGet, fifth))...)
	var r measured
	before, most, err := t.Peak(func() (err error) {
		r, err = listing(ctx, t, min(b.length(), 3*time.Second), many, "application/json", "identity")
		return err
	})
	if err != nil {
		return err
	}
	add(fmt.Sprintf("LIST of %s objects of 1 KB as JSON", report.Number(float64(b.Objects))), report.Value{Unit: "ms", Number: r.p50},
		report.Value{Name: "CPU per object", Unit: "µs", Number: r.cpu * 1000 / float64(b.Objects)},
		report.Value{Text: fmt.Sprintf("%.0f MB, resident %s MB before, at most %s MB", float64(r.bytes)/1e6, report.Number(before),
			report.Number(most))})
	return nil
}

// crowds is many idle watchers, over shared connections and with one each: what one takes, and how long the last one waits
// for a write.
func crowds(ctx context.Context, b *bench, t *load.Target, add adder, base string) error {
	for _, m := range []struct {
		what   string
		client func() (*http.Client, error)
		limit  float64
	}{
		{"HTTP/2, shared connections", t.Streams, 32},
		{"a connection each", func() (*http.Client, error) { return t.Client(b.Watchers + 1) }, 64},
	} {
		client, err := m.client()
		if err != nil {
			return err
		}
		before, err := t.Collected(ctx)
		if err != nil {
			return err
		}
		c, err := gather(ctx, client, base, b.Watchers)
		if err != nil {
			return err
		}
		idle, all, cpu, err := crowded(ctx, t, c, base)
		c.close()
		client.CloseIdleConnections()
		if err != nil {
			return err
		}
		add(fmt.Sprintf("%s idle watchers on one kind, %s objects stored, %s: memory per watcher", report.Number(float64(b.Watchers)),
			report.Number(float64(b.Objects)), m.what),
			idle.Per(before, b.Watchers, report.AtMost(m.limit))...)
		add("write → the last of them",
			report.Value{Name: "p50", Unit: "ms", Number: load.Quantile(all, 50)},
			report.Value{Name: "p99", Unit: "ms", Number: load.Quantile(all, 99)},
			report.Value{Name: "CPU per event", Unit: "µs", Number: float64(cpu.Microseconds()) / float64(idleTold*b.Watchers)})
	}
	return nil
}

// crowded is what a crowd makes the server hold, how long its last member waits for each of some writes, and the CPU of those.
func crowded(ctx context.Context, t *load.Target, c *crowd, base string) (idle load.Held, all []time.Duration, cpu time.Duration,
	err error) {
	if idle, err = t.Collected(ctx); err != nil {
		return idle, nil, 0, err
	}
	before, err := t.Cpu()
	if err != nil {
		return idle, nil, 0, err
	}
	if all, err = latencies(ctx, t, c, base, idleTold); err != nil {
		return idle, nil, 0, err
	}
	after, err := t.Cpu()
	return idle, all, after - before, err
}
