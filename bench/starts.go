// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// upstreamStart is what kube-apiserver with etcd takes until it is ready, in milliseconds.
const upstreamStart = 3500

// starts is exec → ready on an empty data directory, with everything on.
func starts(ctx context.Context, b *bench, add adder) error {
	var took []time.Duration
	for range b.starts {
		s, err := start(ctx, b.binary, "--node", "simulated")
		if err != nil {
			return err
		}
		took = append(took, s.ready)
		if err := s.stop(); err != nil {
			return err
		}
	}
	add(fmt.Sprintf("exec → /readyz ok, empty data directory, median of %d", b.starts),
		value{unit: "ms", number: quantile(took, 50), bound: atMost(upstreamStart / 15)},
		value{text: fmt.Sprintf("%.0f to %.0f", ms(took[0]), ms(took[len(took)-1]))})
	return nil
}

// atRest is memory with all controllers, the scheduler and a node, and CPU while nothing happens.
func atRest(ctx context.Context, b *bench, add adder) (err error) {
	s, err := start(ctx, b.binary, "--node", "simulated")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	client, err := s.client(1)
	if err != nil {
		return err
	}
	// Ten seconds of a watch are ten seconds at rest: the server itself ends it.
	idle := func() error {
		return expect(ctx, client, http.StatusOK, "GET", s.config.Host+"/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=10", "", "")
	}
	if err := idle(); err != nil {
		return err
	}
	before, err := s.cpu()
	if err != nil {
		return err
	}
	if err := idle(); err != nil {
		return err
	}
	after, err := s.cpu()
	if err != nil {
		return err
	}
	resident, anonymous, err := s.memory()
	if err != nil {
		return err
	}
	add("resident memory at rest, all controllers and scheduler in",
		value{unit: "MB", number: float64(resident >> 20), bound: atMost(80)}, value{name: "its own", unit: "MB", number: float64(anonymous >> 20)})
	add("CPU at rest", value{unit: "ms/s", number: ms(after-before) / 10, bound: atMost(2)})
	return nil
}
