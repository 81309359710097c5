// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"errors"
	"slices"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

// explainRounds is how often the two servers take turns, each time the other first: what else the machine does falls upon both.
const explainRounds = 15

// explained is what traces of writes cost of creates: two servers take turns, one that keeps none, one that keeps them.
func explained(ctx context.Context, b *bench, add adder) (err error) {
	plain, err := turn(ctx, b, append(slices.Clone(load.Bare), "--explain=false"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plain.server.Stop()) }()
	traced, err := turn(ctx, b, append(slices.Clone(load.Bare), "--explain=true"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, traced.server.Stop()) }()
	for _, t := range []*turns{plain, traced} {
		t.user = t.server.Target
	}
	both := []*turns{plain, traced}
	for range explainRounds {
		for _, t := range both {
			if err := t.create(ctx, b.length()/4); err != nil {
				return err
			}
		}
		slices.Reverse(both) // who comes second finds a warmer machine
	}
	var shares []load.Result // of what the server without had, in each round
	for i, with := range traced.results {
		without := plain.results[i]
		shares = append(shares, load.Result{Rate: with.Rate / without.Rate, Cpu: with.Cpu / without.Cpu})
	}
	share := middle(shares)
	add("creates of 1 KB, 16 clients, no traces", middle(plain.results).Values(report.Bound{}, report.Bound{})...)
	add("the same with traces (--explain)", middle(traced.results).Values(report.Bound{}, report.Bound{})...)
	add("  throughput of that without; CPU of that without",
		report.Value{Number: share.Rate, Bound: report.Bound{Limit: 0.95, Budgeted: true, Least: true}},
		report.Value{Name: "CPU", Number: share.Cpu})
	return nil
}
