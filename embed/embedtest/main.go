// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embedtest

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/mortise-dev/mortise/embed"
)

// Main starts one cluster for all tests of a package, prepares it with setup (definitions, webhooks, objects), runs the tests and
// exits. Call it from TestMain; setup keeps the cluster in a variable of the package, and each test forks it:
//
//	var prepared *embed.Server
//
//	func TestMain(m *testing.M) {
//		embedtest.Main(m, func(ctx context.Context, cluster *embed.Server) error {
//			prepared = cluster
//			return apply(ctx, cluster.Client(), definitions)
//		})
//	}
//
//	func TestMyController(t *testing.T) {
//		t.Parallel()
//		cluster := prepared.Fork(t)
//		…
//	}
//
// Without a running cluster, no test runs: Main prints the error and exits with 1.
func Main(m *testing.M, setup func(ctx context.Context, cluster *embed.Server) error) {
	os.Exit(run(server(), setup, m.Run))
}

// run runs the tests on a cluster that setup prepared, and returns the exit code.
func run(s *embed.Server, setup func(context.Context, *embed.Server) error, tests func() int) int {
	ctx := context.Background()
	if err := s.Start(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "start cluster:", err)
		return 1
	}
	code := 1
	if err := setup(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, "prepare cluster:", err)
	} else {
		code = tests()
	}
	if err := s.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop cluster:", err)
		return max(code, 1)
	}
	return code
}
