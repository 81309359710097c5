// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"slices"
)

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
	for range auditRounds {
		for _, t := range []*turns{plain, traced} {
			if err := t.create(ctx, b); err != nil {
				return err
			}
		}
	}
	without, with := middle(plain.results), middle(traced.results)
	add("creates of 1 KB, 16 clients, no traces", without.values(bound{}, bound{})...)
	add("the same with traces (--explain)", with.values(bound{limit: 0.95 * without.rate, budgeted: true, least: true}, bound{})...)
	add("  throughput of that without; CPU of that without", value{number: with.rate / without.rate}, value{name: "CPU", number: with.cpu / without.cpu})
	return nil
}
