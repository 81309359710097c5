// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
	"github.com/mortise-dev/mortise/bench/shares"
)

// parts is where the CPU of a request goes, from a profile of the server while one client or 16 send it.
func parts(ctx context.Context, b *bench, add adder) (err error) {
	s, err := load.Start(ctx, b.binary, load.Bare...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	known := conversations()
	for _, line := range []struct {
		name    string
		clients int
	}{
		{"create", 1}, {"create", 16}, {"update", 16}, {"merge", 16}, {"apply", 16}, {"reapply", 16}, {"get", 16}, {"pod", 16},
	} {
		c := known[line.name]
		one, err := c.begin(ctx, b, &s.Target, line.clients)
		if err == nil {
			err = profiled(ctx, b, &s.Target, add, fmt.Sprintf("where the CPU goes: %s, %d clients", c.what, line.clients), one)
		}
		if err != nil {
			return err
		}
	}
	one, err := fanning(ctx, b, &s.Target)
	if err != nil {
		return err
	}
	return profiled(ctx, b, &s.Target, add, "where the CPU goes: watch event", one)
}

// profiled adds the line of one contender.
func profiled(ctx context.Context, b *bench, t *load.Target, add adder, what string, one *contender) error {
	defer one.end()
	var measured []report.Value
	var raw []byte
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		measured, err = one.measure(ctx)
		return err
	})
	g.Go(func() (err error) {
		raw, err = t.Profile(ctx, b.Seconds)
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	of, err := shares.Of(raw)
	if err != nil {
		return err
	}
	cpu := measured[1]
	values := []report.Value{cpu}
	values[0].Bound = report.Bound{}
	for _, p := range shares.Parts() {
		values = append(values, report.Value{Name: string(p), Text: fmt.Sprintf("%s %s", p, report.Number(of[p]*cpu.Number))})
	}
	add(what, values...)
	return nil
}
