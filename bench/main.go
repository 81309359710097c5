// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command bench measures a mortise binary against the budgets of its design, and prints, as rows of Markdown, what was
// measured beside the budget. It starts the binary on empty data directories, on loopback, and stops it by its own process
// id. With -peer, every row that only needs an API server is also put to that one in the same run, and budgets that are
// shares of upstream's figures are then shares of what was measured there. With -kubeconfig nothing is started: the same
// work is put to that server alone.
//
// Each row is one measurement: a start, a closed loop of N clients for a while, a fan-out with a bounded window. CPU is the
// server's own (user and system, from /proc), divided by operations, since on a small machine the clients share its cores.
// A server that was not started here is found by the port that it listens on; what else belongs to it (an etcd) is added
// with -pids.
//
//	go run -tags grpcnotrace ./bench -binary bin/mortise [-rows create,get] [-seconds 5] [-peer KUBECONFIG]
//	go run -tags grpcnotrace ./bench -kubeconfig KUBECONFIG
//	go run -tags grpcnotrace ./bench -list
//
// The tour: main.go flags and order; rows.go THE table of rows; report.go what is printed; target.go a server to measure;
// server.go a binary to start; load.go closed loops; and a file for each sort of row.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == embedChild {
		if err := embedTwice(context.Background(), os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) == 2 && os.Args[1] == podsChild {
		os.Exit(bePodsInit())
	}
	children := map[string]func() error{
		aggregatedChild: func() error { return beAggregated(os.Stdin, os.Stdout) },
		noisyChild:      func() error { return beNoisy(context.Background(), os.Stdin, os.Stdout) },
		podsMeasurer:    func() error { return bePods(context.Background(), os.Stdin, os.Stdout) },
		plainChild:      func() error { return bePlain(os.Stdin, os.Stdout) },
		stallsChild:     func() error { return lookAfterProcessors(os.Stdin, os.Stdout) },
	}
	for _, backend := range proxiedBy() {
		children[proxiedChild+string(backend)] = func() error { return beProxied(context.Background(), backend, os.Stdout) }
	}
	if len(os.Args) == 2 && children[os.Args[1]] != nil {
		if err := children[os.Args[1]](); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	binary := flag.String("binary", "bin/mortise", "the binary to measure")
	kubeconfig := flag.String("kubeconfig", "", "measure this server and start nothing")
	peer := flag.String("peer", "", "kubeconfig of a server that the same work is put to")
	pids := flag.String("pids", "", "further processes of the server of -kubeconfig or -peer, as id,id")
	rows := flag.String("rows", "", "regular expression: only rows whose names match")
	list := flag.Bool("list", false, "list the rows and do nothing")
	flag.IntVar(&o.seconds, "seconds", 4, "how long each closed loop runs, 1 to 600")
	flag.IntVar(&o.starts, "starts", 5, "how many starts are measured, 1 to 100")
	flag.IntVar(&o.objects, "objects", 100_000, "how many objects the growth rows store, 2,000 to 1,000,000")
	flag.IntVar(&o.watchers, "watchers", 10_000, "how many idle watchers there are, 1 to 100,000")
	flag.IntVar(&o.nodes, "nodes", 5000, "how many nodes the scheduler has, 1 to 15,000")
	flag.Parse()
	if err := o.settle(*binary, *kubeconfig, *peer, *pids, *rows); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	if *list {
		for _, r := range rowsInOrder() {
			fmt.Printf("%-12s %s\n", r.name, r.what)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, &o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options is what was asked for, checked.
type options struct {
	binary, kubeconfig, peer                  string
	pids                                      []int
	rows                                      *regexp.Regexp
	seconds, starts, objects, watchers, nodes int
}

func (o *options) length() time.Duration { return time.Duration(o.seconds) * time.Second }

func (o *options) settle(binary, kubeconfig, peer, pids, rows string) (err error) {
	o.binary, o.kubeconfig, o.peer = binary, kubeconfig, peer
	for _, b := range []struct {
		name           string
		value, min, to int
	}{
		{"seconds", o.seconds, 1, 600}, {"starts", o.starts, 1, 100}, {"objects", o.objects, 2000, 1_000_000},
		{"watchers", o.watchers, 1, 100_000}, {"nodes", o.nodes, 1, 15_000},
	} {
		if b.value < b.min || b.value > b.to {
			return fmt.Errorf("-%s is %d, wants %d to %d", b.name, b.value, b.min, b.to)
		}
	}
	if kubeconfig != "" && peer != "" {
		return errors.New("-kubeconfig and -peer exclude each other")
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

// run measures the rows in turn. A row that fails is reported as such; the others still run.
func run(ctx context.Context, o *options) error {
	b := &bench{options: o}
	defer b.end()
	var out report
	var failed []error
	for _, r := range rowsInOrder() {
		if !o.rows.MatchString(r.name) || r.only && o.rows.String() != r.name || o.kubeconfig != "" && r.serve == nil {
			continue
		}
		if err := b.measure(ctx, &r, &out); err != nil {
			if ctx.Err() != nil {
				failed = append(failed, ctx.Err())
				break
			}
			failed = append(failed, fmt.Errorf("%s: %w", r.name, err))
			fmt.Fprintf(os.Stderr, "bench: %s: %v\n", r.name, err)
			out.add(r.what, []value{{text: "not measured: " + err.Error(), bound: atMost(0), number: 1}}, nil)
		}
	}
	out.print(os.Stdout, o.peer != "")
	return errors.Join(failed...)
}
