// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command bench measures a mortise binary against the budgets of its design, and prints measured beside budget. It starts
// the binary on an empty data directory, on loopback, and stops it by its own process id.
//
// Each row is one measurement: a start, or a closed loop of N clients for a while. CPU is the server's own (user and
// system, from /proc), divided by operations, since on a small machine the clients share its cores.
//
//	go run -tags grpcnotrace ./bench -binary bin/mortise [-seconds 5]
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"text/tabwriter"
	"time"
)

func main() {
	binary := flag.String("binary", "bin/mortise", "the binary to measure")
	seconds := flag.Int("seconds", 5, "how long each closed loop runs, 1 to 600")
	starts := flag.Int("starts", 5, "how many starts are measured, 1 to 100")
	flag.Parse()
	if *seconds < 1 || *seconds > 600 || *starts < 1 || *starts > 100 {
		fmt.Fprintln(os.Stderr, "bench: -seconds wants 1 to 600, -starts 1 to 100")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *binary, *starts, time.Duration(*seconds)*time.Second); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// row is one line of the report.
type row struct {
	what, measured, budget string
}

// report prints rows as they come, aligned at the end.
type report struct{ rows []row }

func (r *report) add(what, budget, format string, a ...any) {
	line := row{what, fmt.Sprintf(format, a...), budget}
	r.rows = append(r.rows, line)
	fmt.Fprintf(os.Stderr, "%s: %s\n", line.what, line.measured)
}

func (r *report) print() {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "what\tmeasured\tbudget")
	for _, l := range r.rows {
		fmt.Fprintf(w, "%s\t%s\t%s\n", l.what, l.measured, l.budget)
	}
	w.Flush()
}

// run measures everything in turn.
func run(ctx context.Context, binary string, starts int, length time.Duration) error {
	var out report
	if err := measureStarts(ctx, &out, binary, starts); err != nil {
		return err
	}
	if err := measureRest(ctx, &out, binary); err != nil {
		return err
	}
	s, err := start(ctx, binary, "--node", "none", "--controllers", "none")
	if err != nil {
		return err
	}
	defer s.stop()
	if err := measureRequests(ctx, &out, s, length); err != nil {
		return err
	}
	if err := measureDefinition(ctx, &out, s); err != nil {
		return err
	}
	if err := s.stop(); err != nil {
		return err
	}
	out.print()
	return nil
}
