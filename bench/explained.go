// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"slices"
)

// explainRounds is how often the two servers take turns, each time the other first: what else the machine does falls upon both.
const explainRounds = 15

// explained is what traces of writes cost of creates: two servers take turns, one that keeps none, one that keeps them.
func explained(ctx context.Context, b *bench, add adder) (err error) {
	plain, err := turn(ctx, b, append(slices.Clone(bare), "--explain=false"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plain.server.stop()) }()
	traced, err := turn(ctx, b, append(slices.Clone(bare), "--explain=true"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, traced.server.stop()) }()
	for _, t := range []*turns{plain, traced} {
		t.user = t.server.target
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
	var shares []result // of what the server without had, in each round
	for i, with := range traced.results {
		without := plain.results[i]
		shares = append(shares, result{rate: with.rate / without.rate, cpu: with.cpu / without.cpu})
	}
	share := middle(shares)
	add("creates of 1 KB, 16 clients, no traces", middle(plain.results).values(bound{}, bound{})...)
	add("the same with traces (--explain)", middle(traced.results).values(bound{}, bound{})...)
	add("  throughput of that without; CPU of that without", value{number: share.rate, bound: bound{limit: 0.95, budgeted: true, least: true}},
		value{name: "CPU", number: share.cpu})
	return nil
}
