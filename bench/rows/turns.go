// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

// roundsOfTurns is how often the server and its peer take turns in each line: what else the machine does meanwhile falls upon both.
const roundsOfTurns = 5

// comparison is a line that the server and its peer are measured for by turns. The line has the median of each value.
type comparison struct {
	name, what string
	// begin prepares a server. What it returns measures it once.
	begin func(ctx context.Context, b *bench, t *load.Target) (*contender, error)
}

// contender is a server that is prepared for a comparison.
type contender struct {
	measure func(ctx context.Context) ([]report.Value, error)
	end     func()
}

// compare does the comparisons of a row.
func (b *bench) compare(ctx context.Context, r *row, out *report.Report) (err error) {
	targets, stop, err := b.opponents(ctx, r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	for _, c := range r.compare {
		values, err := byTurns(ctx, b, &c, targets)
		if err != nil {
			return fmt.Errorf("%s: %w", c.what, err)
		}
		var peer []report.Value
		if len(values) > 1 {
			peer = values[1]
		}
		out.Add(c.what, b.judged(values[0]), peer)
	}
	return nil
}

// opponents are the server and, if there is one, its peer, and what is to be called after the row.
func (b *bench) opponents(ctx context.Context, r *row) ([]*load.Target, func() error, error) {
	if r.etcd {
		p, err := b.onOneEtcd(ctx)
		if err != nil {
			return nil, nil, err
		}
		return p.targets(), func() error { return nil }, nil
	}
	mine, stop, err := b.target(ctx, r)
	if err != nil || b.other() == "" {
		return []*load.Target{mine}, stop, err
	}
	peer, stopPeer, err := b.peerTarget(ctx, r)
	if err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return []*load.Target{mine, peer}, func() error { return errors.Join(stop(), stopPeer()) }, nil
}

// byTurns measures each target in each round, and returns the medians of each.
func byTurns(ctx context.Context, b *bench, c *comparison, targets []*load.Target) (medians [][]report.Value, err error) {
	var all []*contender
	defer func() {
		for _, one := range all {
			one.end()
		}
	}()
	for _, t := range targets {
		one, err := c.begin(ctx, b, t)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	rounds := make([][][]report.Value, len(all))
	for range roundsOfTurns {
		for i, one := range all {
			values, err := one.measure(ctx)
			if err != nil {
				return nil, err
			}
			rounds[i] = append(rounds[i], values)
		}
	}
	for _, r := range rounds {
		medians = append(medians, medianValues(r))
	}
	return medians, nil
}

// medianValues is the median of each value of several rounds.
func medianValues(rounds [][]report.Value) []report.Value {
	medians := slices.Clone(rounds[0])
	for i := range medians {
		var numbers []float64
		for _, r := range rounds {
			numbers = append(numbers, r[i].Number)
		}
		slices.Sort(numbers)
		medians[i].Number = numbers[len(numbers)/2]
	}
	return medians
}

// peerTarget is the peer of a row, and what is to be called after it. A row with arguments gets a peer that nothing was done to before,
// if its programs are known.
func (b *bench) peerTarget(ctx context.Context, r *row) (*load.Target, func() error, error) {
	nothing := func() error { return nil }
	if b.Against != "" {
		return b.started(ctx, r, b.Against, &b.sharedOld)
	}
	if !isDirectory(b.peer) {
		if b.peerTo == nil {
			t, err := load.Connect(b.peer, b.pids)
			if err != nil {
				return nil, nil, err
			}
			b.peerTo = t
		}
		return b.peerTo, nothing, nil
	}
	if len(r.args) > 0 {
		u, err := load.StartUpstream(ctx, b.peer)
		if err != nil {
			return nil, nil, err
		}
		return &u.Target, u.Stop, nil
	}
	if b.sharedPeer == nil {
		u, err := load.StartUpstream(ctx, b.peer)
		if err != nil {
			return nil, nil, err
		}
		b.sharedPeer = u
	}
	return &b.sharedPeer.Target, nothing, nil
}

func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
