// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

// upstreamStart is what kube-apiserver with etcd takes until it is ready, in milliseconds.
const upstreamStart = 3500

// starts is exec → ready on an empty data directory, with everything on.
func starts(ctx context.Context, b *bench, add adder) error {
	var took []time.Duration
	for range b.Starts {
		s, err := load.Start(ctx, b.binary, "--node", "simulated")
		if err != nil {
			return err
		}
		took = append(took, s.Ready)
		if err := s.Stop(); err != nil {
			return err
		}
	}
	add(fmt.Sprintf("exec → /readyz ok, empty data directory, median of %d", b.Starts),
		report.Value{Unit: "ms", Number: load.Quantile(took, 50), Bound: report.AtMost(upstreamStart / 15)},
		report.Value{Text: fmt.Sprintf("%.0f to %.0f", load.Ms(took[0]), load.Ms(took[len(took)-1]))})
	return nil
}

// atRest is memory with all controllers, the scheduler and a node, and CPU while nothing happens.
func atRest(ctx context.Context, b *bench, add adder) (err error) {
	s, err := load.Start(ctx, b.binary, "--node", "simulated")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	client, err := s.Client(1)
	if err != nil {
		return err
	}
	// Ten seconds of a watch are ten seconds at rest: the server itself ends it.
	idle := func() error {
		return load.Expect(ctx, client, http.StatusOK, "GET", s.Config.Host+"/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=10",
			"", "")
	}
	if err := idle(); err != nil {
		return err
	}
	before, err := s.Cpu()
	if err != nil {
		return err
	}
	if err := idle(); err != nil {
		return err
	}
	after, err := s.Cpu()
	if err != nil {
		return err
	}
	resident, anonymous, err := s.Memory()
	if err != nil {
		return err
	}
	add("resident memory at rest, all controllers and scheduler in",
		report.Value{Unit: "MB", Number: float64(resident >> 20), Bound: report.AtMost(80)},
		report.Value{Name: "its own", Unit: "MB", Number: float64(anonymous >> 20)})
	add("CPU at rest", report.Value{Unit: "ms/s", Number: load.Ms(after-before) / 10, Bound: report.AtMost(2)})
	return nil
}
