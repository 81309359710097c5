// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/local"
)

// embedChild is the subcommand that starts clusters, so that each first start is a process's first.
const embedChild = "embed-twice"

// embedTwice does what embedtest.New does, twice in one process, and writes how many nanoseconds each took.
func embedTwice(ctx context.Context, w io.Writer) error {
	for range 2 {
		s := &embed.Server{}
		began := time.Now()
		if err := s.Start(ctx); err != nil {
			return fmt.Errorf("start cluster: %w", err)
		}
		took := time.Since(began)
		if err := s.Stop(); err != nil {
			return fmt.Errorf("stop cluster: %w", err)
		}
		if _, err := fmt.Fprintln(w, took.Nanoseconds()); err != nil {
			return err
		}
	}
	return nil
}

func embeds(ctx context.Context, b *bench, add adder) error {
	var first, second []time.Duration
	for range b.Starts {
		c, err := ownProgram(ctx, embedChild)
		if err != nil {
			return err
		}
		out, err := c.Output()
		if err != nil {
			return fmt.Errorf("start clusters: %w", err)
		}
		var one, two time.Duration
		if _, err := fmt.Sscan(string(out), &one, &two); err != nil {
			return fmt.Errorf("start clusters: %w", err)
		}
		first, second = append(first, one), append(second, two)
	}
	add(fmt.Sprintf("embedtest.New, the first of a process, median of %d", b.Starts),
		report.Value{Unit: "ms", Number: load.Quantile(first, 50), Bound: report.AtMost(100)})
	add("embedtest.New, the second", report.Value{Unit: "ms", Number: load.Quantile(second, 50), Bound: report.AtMost(20)})
	return nil
}

// engine is the store without the API: 256 writers that each wait for their commit, and opening what 100,000 commits left.
func engine(ctx context.Context, b *bench, add adder) (err error) {
	dir, err := os.MkdirTemp("", "mortise-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	rate, err := committing(ctx, dir+"/rate", 256, b.length(), 0)
	if err != nil {
		return err
	}
	add("engine alone, 256 writers of 1 KB, each synced",
		report.Value{Unit: "/s", Number: rate, Bound: report.Bound{Least: true, Limit: 100_000, Budgeted: true}})
	const records = 100_000
	if _, err := committing(ctx, dir+"/open", 64, time.Hour, records); err != nil {
		return err
	}
	var took []time.Duration
	for range b.Starts {
		began := time.Now()
		e, err := local.Open(dir+"/open", local.Options{})
		if err != nil {
			return fmt.Errorf("open store: %w", err)
		}
		took = append(took, time.Since(began))
		if err := e.Close(); err != nil {
			return fmt.Errorf("close store: %w", err)
		}
	}
	add(fmt.Sprintf("opening a store of %s records of 1 KB, median of %d", report.Number(records), b.Starts),
		report.Value{Unit: "ms", Number: load.Quantile(took, 50)})
	return nil
}

// committing lets so many writers commit for a while, or until there are so many records, and returns commits a second.
func committing(ctx context.Context, dir string, writers int, length time.Duration, records int64) (rate float64, err error) {
	e, err := local.Open(dir, local.Options{})
	if err != nil {
		return 0, fmt.Errorf("open store: %w", err)
	}
	s := store.New(e)
	defer func() { err = errors.Join(err, s.Close()) }()
	var done atomic.Int64
	var failure atomic.Pointer[error]
	var g sync.WaitGroup
	began := time.Now()
	for range writers {
		g.Go(func() {
			for failure.Load() == nil && time.Since(began) < length {
				n := done.Add(1)
				if records > 0 && n > records {
					return
				}
				if _, err := s.Update(ctx, fmt.Sprintf("/registry/configmaps/ns%d/%d", n%50, n), store.Any, make([]byte, 1024), 0); err != nil {
					failure.Store(&err)
					return
				}
			}
		})
	}
	g.Wait()
	if p := failure.Load(); p != nil {
		return 0, *p
	}
	return float64(done.Load()) / time.Since(began).Seconds(), nil
}
