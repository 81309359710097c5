// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command testcost measures what a test costs its author, with embedtest and with controller-runtime's envtest, and prints one table: the
// packages that a module with one test compiles, the time and the processor time of `go test` with an empty cache and with a full one, the
// size of the test binary, and what a cluster, a fork and 500 parallel tests take.
//
//	KUBEBUILDER_ASSETS=DIR go run ./scripts/testcost -cold
//	go run ./scripts/testcost -cold -platforms linux/arm64,darwin/arm64
//
// DIR has envtest's kube-apiserver and etcd; without it, the test with envtest is compiled and does not run. With -cold it compiles
// everything twice, in caches of its own, which takes minutes and gigabytes. With -platforms it builds the test with embedtest for each
// platform instead, one after the other: with -cold as a developer there does for the first time.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
)

func main() {
	cold := flag.Bool("cold", false, "measure with an empty cache, too")
	tree := flag.String("tree", ".", "the folder of this module")
	forks := flag.Int("forks", 500, "how many parallel tests fork a cluster")
	environments := flag.Int("environments", 20, "how many parallel tests start an environment with the programs")
	platforms := flag.String("platforms", "", "only build the test for these platforms, as GOOS/GOARCH with commas between them")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if *platforms != "" {
		err = cross(ctx, *tree, *cold, strings.Split(*platforms, ","))
	} else {
		err = table(ctx, *tree, *cold, *forks, *environments)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:gocritic // nothing is left to stop
	}
}

// table prints what everything costs.
func table(ctx context.Context, tree string, cold bool, forks, environments int) error {
	tree, err := filepath.Abs(tree)
	if err != nil {
		return err
	}
	got, err := costs(ctx, tree, forks, environments)
	if err != nil {
		return err
	}
	ours, err := module(ctx, withEmbedtest, tree, cold)
	if err != nil {
		return err
	}
	theirs, err := module(ctx, withEnvtest, tree, cold)
	if err != nil {
		return err
	}
	fmt.Println("| what | at most | embedtest | envtest |\n|---|---|---|---|")
	for _, r := range [][]string{
		{"a new cluster", "20 ms", got["new"], got["programs"]},
		{"an Environment of package envtest", "", got["mortise"], got["programs"]},
		{"a fork of a cluster of 10,000 objects", "1 ms, 200 KB", got["fork"], "none"},
		{"the fork and its first answer, in the process", "1 ms, 200 KB", got["fork-in-process"], "none"},
		{"the fork and its first answer, over TLS", "200 KB", got["fork-over-tls"], "none"},
		{"parallel tests, each with a cluster and a Deployment", "500 in 30 s, 2 GB", got["parallel"], got["parallel-programs"]},
		{"packages that a test compiles", "", ours[0], theirs[0]},
		{"`go test` of one test, empty cache", "", ours[1], theirs[1]},
		{"`go test` of one test, full cache", "", ours[2], theirs[2]},
		{"test binary", "", ours[3], theirs[3]},
	} {
		for i, cell := range r[2:] {
			if cell == "" {
				r[i+2] = "not measured"
			}
		}
		fmt.Println("| " + strings.Join(r, " | ") + " |")
	}
	return nil
}

// cross builds the test for other platforms, and prints a line for each. If cold is true, each has a cache of its own, which is removed
// afterwards.
func cross(ctx context.Context, tree string, cold bool, platforms []string) error {
	cache := "the usual cache"
	if cold {
		cache = "an empty cache"
	}
	fmt.Printf("| platform | packages | test binary | build with %s |\n|---|---|---|---|\n", cache)
	for _, p := range platforms {
		system, processor, ok := strings.Cut(p, "/")
		if !ok {
			return fmt.Errorf("platform %q: want GOOS/GOARCH", p)
		}
		err := within(withEmbedtest, tree, func(mine string) error {
			env := []string{"GOOS=" + system, "GOARCH=" + processor}
			if cold {
				env = append(env, "GOCACHE="+filepath.Join(mine, "..", "cache"))
			}
			packages, size, took, err := build(ctx, mine, env)
			if err == nil {
				fmt.Printf("| %s | %d | %d MB | %s |\n", p, packages, size>>20, took)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	return nil
}
