// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command bench measures a mortise binary against the budgets of its design, and prints the measurements beside the budgets
// as rows of Markdown. It starts the binary on empty data directories, on loopback, and stops it by its process ID. With
// -peer, it also measures another server in the same run, in every row that only needs an API server, and budgets that are
// shares of upstream's numbers then refer to these measurements. The peer is a server that runs, by its kubeconfig, or a directory
// with the programs kube-apiserver and etcd, which bench starts. With -kubeconfig it starts nothing, and measures that
// server alone.
//
// With -against, the other server is an older binary of Mortise: the rows that can be put to any server are measured for both by
// turns, and the budget of CPU and memory is what the older one took, and 3 % of it.
//
// Each row is one measurement: a start, a closed loop of N clients for a while, a fan-out with a bounded window. CPU is the
// server's own (user and system, from /proc), divided by operations, since on a small machine the clients share its cores.
// bench finds a server that it did not start by its port; -pids adds further processes of it, such as an etcd.
//
//	go run -tags grpcnotrace ./bench -binary bin/mortise [-rows 'create|get'] [-seconds 5] [-peer KUBECONFIG|DIRECTORY]
//	go run -tags grpcnotrace ./bench -binary bin/mortise -against OLDER [-rows '^(clients|burst)$']
//	go run -tags grpcnotrace ./bench -kubeconfig KUBECONFIG
//	go run -tags grpcnotrace ./bench -list
//
// A row that needs a client, a server or a node in a process of its own starts this program with a subcommand ([rows.Subcommands]).
//
// Reading order: main.go has the flags; bench/rows the table of rows and the rows; bench/load servers, clients and closed
// loops; bench/report the output.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/mortise-dev/mortise/bench/rows"
)

func main() {
	if len(os.Args) == 2 {
		if run := rows.Subcommands()[os.Args[1]]; run != nil {
			if err := run(context.Background(), os.Stdin, os.Stdout); err != nil {
				fmt.Fprintln(os.Stderr, "bench:", err)
				os.Exit(1)
			}
			return
		}
	}
	var o rows.Options
	binary := flag.String("binary", "bin/mortise", "the binary to measure")
	kubeconfig := flag.String("kubeconfig", "", "measure this server and start nothing")
	peer := flag.String("peer", "", "server that does the same work: a kubeconfig, or a directory with kube-apiserver and etcd")
	pids := flag.String("pids", "", "further processes of the server of -kubeconfig or -peer, as id,id")
	pattern := flag.String("rows", "", "regular expression: only rows whose names match, or row/line, such as clients/create16")
	flag.StringVar(&o.Against, "against", "", "older binary of Mortise that does the same work by turns")
	only := flag.Bool("list", false, "list the rows and do nothing")
	flag.IntVar(&o.Seconds, "seconds", 4, "how long each closed loop runs, 1 to 600")
	flag.IntVar(&o.Starts, "starts", 5, "how many starts are measured, 1 to 100")
	flag.IntVar(&o.Objects, "objects", 100_000, "how many objects the growth rows store, 2,000 to 1,000,000")
	flag.IntVar(&o.Watchers, "watchers", 10_000, "how many idle watchers there are, 1 to 100,000")
	flag.IntVar(&o.Nodes, "nodes", 5000, "how many nodes the scheduler has, 1 to 15,000")
	flag.Parse()
	if err := o.Settle(*binary, *kubeconfig, *peer, *pids, *pattern); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	if *only {
		rows.List(os.Stdout)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := rows.Run(ctx, &o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
