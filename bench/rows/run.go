// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

// Options is what was asked for, checked.
type Options struct {
	binary, kubeconfig, peer                  string
	pids                                      []int
	rows                                      *regexp.Regexp
	Against                                   string // an older binary, which is measured as a peer is
	Seconds, Starts, Objects, Watchers, Nodes int
}

func (o *Options) length() time.Duration { return time.Duration(o.Seconds) * time.Second }

func (o *Options) Settle(binary, kubeconfig, peer, pids, rows string) (err error) {
	o.binary, o.kubeconfig, o.peer = binary, kubeconfig, peer
	for _, b := range []struct {
		name           string
		value, min, to int
	}{
		{"seconds", o.Seconds, 1, 600}, {"starts", o.Starts, 1, 100}, {"objects", o.Objects, 2000, 1_000_000},
		{"watchers", o.Watchers, 1, 100_000}, {"nodes", o.Nodes, 1, 15_000},
	} {
		if b.value < b.min || b.value > b.to {
			return fmt.Errorf("-%s is %d, wants %d to %d", b.name, b.value, b.min, b.to)
		}
	}
	if kubeconfig != "" && peer != "" {
		return errors.New("-kubeconfig and -peer exclude each other")
	}
	if o.Against != "" && (kubeconfig != "" || peer != "") {
		return errors.New("-against excludes -kubeconfig and -peer")
	}
	for field := range strings.SplitSeq(pids, ",") {
		if field == "" {
			continue
		}
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 {
			return fmt.Errorf("-pids: %q is no process id", field)
		}
		o.pids = append(o.pids, n)
	}
	if o.rows, err = regexp.Compile(rows); err != nil {
		return fmt.Errorf("-rows: %w", err)
	}
	return nil
}

// List writes the names of the rows and what they measure.
func List(w io.Writer) {
	for _, r := range rowsInOrder() {
		fmt.Fprintf(w, "%-12s %s\n", r.name, r.what)
	}
}

// Run measures the rows in turn. A row that fails is reported as such; the others still run.
func Run(ctx context.Context, o *Options) error {
	b := &bench{Options: o}
	defer b.end()
	var out report.Report
	var failed []error
	for _, r := range rowsInOrder() {
		if !o.selects(&r) || r.only && strings.Trim(o.rows.String(), "^$") != r.name || o.kubeconfig != "" && r.start != nil {
			continue
		}
		if err := b.measure(ctx, &r, &out); err != nil {
			if ctx.Err() != nil {
				failed = append(failed, ctx.Err())
				break
			}
			failed = append(failed, fmt.Errorf("%s: %w", r.name, err))
			fmt.Fprintf(os.Stderr, "bench: %s: %v\n", r.name, err)
			out.Add(r.what, []report.Value{{Text: "not measured: " + err.Error(), Bound: report.AtMost(0), Number: 1}}, nil)
		}
	}
	out.Print(os.Stdout, o.other())
	return errors.Join(failed...)
}

// other says what is measured beside the server, if anything is.
func (o *Options) other() string {
	switch {
	case o.Against != "":
		return "older"
	case o.peer != "":
		return "peer"
	}
	return ""
}

// selects reports whether a row is asked for, by its name or as "row/line" by that of one of its lines, and leaves it those lines.
func (o *Options) selects(r *row) bool {
	if o.rows.MatchString(r.name) {
		return true
	}
	r.compare = slices.DeleteFunc(r.compare, func(c comparison) bool { return !o.rows.MatchString(r.name + "/" + c.name) })
	return len(r.compare) > 0
}

// bench is a run of the rows: the servers that several of them share.
type bench struct {
	*Options
	shared     *load.Server            // bare, started by the first row that needs it
	sharedOld  *load.Server            // the same of the older binary
	peerTo     *load.Target            // a peer that runs
	sharedPeer *load.Upstream          // a peer that the bench starts, for the first row that needs it
	pair       *pair                   // on one etcd, for the row that compares them
	podsOf     map[*load.Target]string // paths of the 5,000 pods that lines of the row "clients" list
}

func (b *bench) end() error {
	var errs []error
	if b.shared != nil {
		errs = append(errs, b.shared.Stop())
	}
	if b.sharedOld != nil {
		errs = append(errs, b.sharedOld.Stop())
	}
	if b.sharedPeer != nil {
		errs = append(errs, b.sharedPeer.Stop())
	}
	if b.pair != nil {
		errs = append(errs, b.pair.stop())
	}
	return errors.Join(errs...)
}

// measure does one row, on the peer too if there is one and the row is for any server.
func (b *bench) measure(ctx context.Context, r *row, out *report.Report) (err error) {
	if r.compare != nil {
		return b.compare(ctx, r, out)
	}
	if r.serve == nil {
		return r.start(ctx, b, func(what string, values ...report.Value) { out.Add(what, values, nil) })
	}
	if b.Against != "" {
		return b.serveByTurns(ctx, r, out)
	}
	mine := &lines{}
	t, stop, err := b.target(ctx, r)
	if err != nil {
		return err
	}
	err = r.serve(ctx, b, t, mine.add)
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	peer := &lines{}
	if b.peer != "" {
		other, stop, err := b.peerTarget(ctx, r)
		if err != nil {
			return err
		}
		if err := errors.Join(r.serve(ctx, b, other, peer.add), stop()); err != nil {
			peer.lines = []report.Line{{Mine: []report.Value{{Text: "not measured: " + err.Error()}}}}
			fmt.Fprintf(os.Stderr, "bench: %s on the peer: %v\n", r.name, err)
		}
	}
	for i, l := range mine.lines {
		var other []report.Value
		if i < len(peer.lines) {
			other = peer.lines[i].Mine
		}
		out.Add(l.What, l.Mine, other)
	}
	return nil
}

// lines gathers what a row measured.
type lines struct{ lines []report.Line }

func (l *lines) add(what string, values ...report.Value) {
	l.lines = append(l.lines, report.Line{What: what, Mine: values})
}

// target is the server that a row is put to, and what is to be called after it.
func (b *bench) target(ctx context.Context, r *row) (*load.Target, func() error, error) {
	if b.kubeconfig != "" {
		if b.peerTo == nil {
			t, err := load.Connect(b.kubeconfig, b.pids)
			if err != nil {
				return nil, nil, err
			}
			b.peerTo = t
		}
		return b.peerTo, func() error { return nil }, nil
	}
	return b.started(ctx, r, b.binary, &b.shared)
}

// started is a server of a binary: one for the row alone, if it has arguments, or the one that rows share.
func (b *bench) started(ctx context.Context, r *row, binary string, shared **load.Server) (*load.Target, func() error, error) {
	if len(r.args) > 0 {
		s, err := load.Start(ctx, binary, r.args...)
		if err != nil {
			return nil, nil, err
		}
		return &s.Target, s.Stop, nil
	}
	if *shared == nil {
		s, err := load.Start(ctx, binary, load.Bare...)
		if err != nil {
			return nil, nil, err
		}
		*shared = s
	}
	return &(*shared).Target, func() error { return nil }, nil
}
