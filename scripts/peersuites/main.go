// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command peersuites runs test suites of other projects that start controller-runtime's envtest: once with envtest's programs, and once
// with Mortise. It prints a line of a table for each suite: how many specs passed, and in what time.
//
//	KUBEBUILDER_ASSETS=DIR go run ./scripts/peersuites -run '^cluster-api'
//
// DIR has envtest's kube-apiserver, etcd and kubectl. Suites of controller-runtime run unchanged with both, with bin/mortise under the
// names of the programs. Suites of operators run with Mortise by the changed import, package embed/envtest. The Go module proxy has the
// sources; each module is copied, and gets the versions of Kubernetes' libraries that this module has. All suites together take an hour.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
)

func main() {
	o := options{}
	match := flag.String("run", ".", "run the suites whose names, such as jobset/test/integration/webhook, match the expression")
	flag.StringVar(&o.tree, "tree", ".", "the folder of this module")
	flag.StringVar(&o.dir, "dir", "", "the folder of the copies, which are kept; empty: a temporary one")
	flag.StringVar(&o.focus, "focus", "", "run the specs or tests that match the expression only")
	flag.StringVar(&o.programs, "programs", "bin/mortise", "the program that takes the place of envtest's, for controller-runtime's suites")
	flag.BoolVar(&o.ours, "ours", false, "run with Mortise only")
	flag.DurationVar(&o.delay, "delay", 0, "how long each commit of Mortise's store takes longer, in suites with the changed import")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := runAll(ctx, o, *match); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:gocritic // nothing is left to stop
	}
}

func runAll(ctx context.Context, o options, match string) (err error) {
	chosen, err := regexp.Compile(match)
	if err != nil {
		return fmt.Errorf("read -run: %w", err)
	}
	if o.tree, err = filepath.Abs(o.tree); err != nil {
		return err
	}
	if o.programs, err = filepath.Abs(o.programs); err != nil {
		return err
	}
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "peersuites"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
	} else if o.dir, err = filepath.Abs(o.dir); err != nil {
		return err
	} else if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return err
	}
	fmt.Println("| suite | specs | envtest's pass | Mortise's pass |\n|---|---|---|---|")
	for _, p := range projects {
		for _, folder := range p.suites {
			s := suite{options: o, project: p, folder: folder}
			if !chosen.MatchString(s.name()) {
				continue
			}
			if err := s.run(ctx); err != nil {
				fmt.Fprintf(os.Stderr, "%s: %v\n", s.name(), err)
			}
		}
	}
	return ctx.Err()
}
