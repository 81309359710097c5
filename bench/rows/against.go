// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"errors"
	"fmt"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

// worse is how much of what an older binary takes a newer one may take.
const worse = 1.03

// judged are values whose budget is what the older binary takes, if there is one: of CPU and of memory. What is measured in time depends on
// what else the machine does.
func (b *bench) judged(values []report.Value) []report.Value {
	if b.Against == "" {
		return values
	}
	for i, v := range values {
		values[i].Bound = report.Bound{}
		if v.Unit == "MB" || v.Unit == "KB" || v.Name == "CPU" {
			values[i].Bound = report.ShareOf(0, worse)
		}
	}
	return values
}

// serveByTurns measures a row on the binary and the older one in each of several rounds, and adds the medians.
func (b *bench) serveByTurns(ctx context.Context, r *row, out *report.Report) error {
	var rounds [2][][]report.Value // of each binary: the lines of a round, then those of the next
	var names []string
	for round := range roundsOfTurns {
		for i, of := range []func(context.Context, *row) (*load.Target, func() error, error){b.target, b.peerTarget} {
			t, stop, err := of(ctx, r)
			if err != nil {
				return err
			}
			measured := &lines{}
			if err := errors.Join(r.serve(ctx, b, t, measured.add), stop()); err != nil {
				return err
			}
			if round == 0 && i == 0 {
				for _, l := range measured.lines {
					names = append(names, l.What)
				}
			}
			if len(measured.lines) != len(names) {
				return fmt.Errorf("%d lines were measured, and %d before", len(measured.lines), len(names))
			}
			for _, l := range measured.lines {
				rounds[i] = append(rounds[i], l.Mine)
			}
		}
	}
	for line, what := range names {
		var medians [2][]report.Value
		for i, all := range rounds {
			var of [][]report.Value
			for at := line; at < len(all); at += len(names) {
				of = append(of, all[at])
			}
			medians[i] = medianValues(of)
		}
		out.Add(what, b.judged(medians[0]), medians[1])
	}
	return nil
}
