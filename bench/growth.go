// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"
)

const (
	few       = 1000 // objects at the beginning of growth
	flat      = 1.3  // what may be called no growth, with the noise of a loaded machine
	idleTold  = 40   // writes that idle watchers are told of
	fewWrites = 300  // writes that one watcher is told of
)

// costs is what requests cost with so many objects stored.
type costs struct {
	get, create result
	watch       float64 // milliseconds from write to event, p50
	list        float64 // CPU in milliseconds, of a few objects
}

// growth stores few objects and then many others, and measures the same requests both times; then requests for the many, of
// which not all are decoded in memory; then many watchers on them.
func growth(ctx context.Context, b *bench, t *target, add adder) error {
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
	before, err := t.collected(ctx)
	if err != nil {
		return err
	}
	many, err := stored(ctx, t, b.objects)
	if err != nil {
		return err
	}
	after, err := t.collected(ctx)
	if err != nil {
		return err
	}
	add(fmt.Sprintf("memory per object of 1 KB, %s stored", number(float64(b.objects))), after.per(before, b.objects, bound{})...)
	large, err := cost(ctx, b, t, base, made, &serial)
	if err != nil {
		return err
	}
	grown := func(what string, from, to float64) {
		add(fmt.Sprintf("%s, %s → %s objects stored", what, number(few), number(float64(b.objects))),
			value{text: fmt.Sprintf("%s → %s ms", number(from), number(to))}, value{name: "growth", unit: "×", number: to / from, bound: atMost(flat)})
	}
	grown("CPU of a GET", small.get.cpu, large.get.cpu)
	grown("CPU of a create", small.create.cpu, large.create.cpu)
	grown("write → one watcher, p50", small.watch, large.watch)
	grown(fmt.Sprintf("CPU of a LIST of %s", number(few)), small.list, large.list)
	if err := anyOf(ctx, b, t, add, many); err != nil {
		return err
	}
	return crowds(ctx, b, t, add, many)
}

func cost(ctx context.Context, b *bench, t *target, base, made string, serial *atomic.Int64) (c costs, err error) {
	name := some(base, few)
	if c.get, err = loop(ctx, t, 16, b.length(), func(ctx context.Context, client *http.Client) error {
		return expect(ctx, client, http.StatusOK, "GET", name(), "", "")
	}); err != nil {
		return c, err
	}
	r, err := listing(ctx, t, min(b.length(), 3*time.Second), base, "application/json", "identity")
	if err != nil {
		return c, err
	}
	c.list = r.cpu
	client, err := t.client(2)
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
	c.watch = quantile(all, 50)
	c.create, err = loop(ctx, t, 16, b.length(), func(ctx context.Context, client *http.Client) error {
		return expect(ctx, client, http.StatusCreated, "POST", made, "application/json", configMap(fmt.Sprint("g-", serial.Add(1)), kilobyte))
	})
	return c, err
}

// anyOf is what the many objects cost, most of which must be decoded each time.
func anyOf(ctx context.Context, b *bench, t *target, add adder, many string) error {
	name := some(many, b.objects)
	get, err := loop(ctx, t, 16, b.length(), func(ctx context.Context, client *http.Client) error {
		return expect(ctx, client, http.StatusOK, "GET", name(), "", "")
	})
	if err != nil {
		return err
	}
	add(fmt.Sprintf("GET of any of %s objects, 16 clients", number(float64(b.objects))), get.values(bound{}, shareOf(upstreamGet, fifth))...)
	var r measured
	before, most, err := t.peak(func() (err error) {
		r, err = listing(ctx, t, min(b.length(), 3*time.Second), many, "application/json", "identity")
		return err
	})
	if err != nil {
		return err
	}
	add(fmt.Sprintf("LIST of %s objects of 1 KB as JSON", number(float64(b.objects))), value{unit: "ms", number: r.p50},
		value{name: "CPU per object", unit: "µs", number: r.cpu * 1000 / float64(b.objects)},
		value{text: fmt.Sprintf("%.0f MB, resident %s MB before, at most %s MB", float64(r.bytes)/1e6, number(before), number(most))})
	return nil
}

// crowds is many idle watchers, over shared connections and with one each: what one takes, and how long the last one waits
// for a write.
func crowds(ctx context.Context, b *bench, t *target, add adder, base string) error {
	for _, m := range []struct {
		what   string
		client func() (*http.Client, error)
		limit  float64
	}{
		{"HTTP/2, shared connections", t.streams, 32},
		{"a connection each", func() (*http.Client, error) { return t.client(b.watchers + 1) }, 64},
	} {
		client, err := m.client()
		if err != nil {
			return err
		}
		before, err := t.collected(ctx)
		if err != nil {
			return err
		}
		c, err := gather(ctx, client, base, b.watchers)
		if err != nil {
			return err
		}
		idle, all, cpu, err := crowded(ctx, t, c, base)
		c.close()
		client.CloseIdleConnections()
		if err != nil {
			return err
		}
		add(fmt.Sprintf("%s idle watchers on one kind, %s objects stored, %s: memory per watcher", number(float64(b.watchers)), number(float64(b.objects)), m.what),
			idle.per(before, b.watchers, atMost(m.limit))...)
		add("write → the last of them",
			value{name: "p50", unit: "ms", number: quantile(all, 50)}, value{name: "p99", unit: "ms", number: quantile(all, 99)},
			value{name: "CPU per event", unit: "µs", number: float64(cpu.Microseconds()) / float64(idleTold*b.watchers)})
	}
	return nil
}

// crowded is what a crowd makes the server hold, how long its last member waits for each of some writes, and the CPU of those.
func crowded(ctx context.Context, t *target, c *crowd, base string) (idle held, all []time.Duration, cpu time.Duration, err error) {
	if idle, err = t.collected(ctx); err != nil {
		return idle, nil, 0, err
	}
	before, err := t.cpu()
	if err != nil {
		return idle, nil, 0, err
	}
	if all, err = latencies(ctx, t, c, base, idleTold); err != nil {
		return idle, nil, 0, err
	}
	after, err := t.cpu()
	return idle, all, after - before, err
}
