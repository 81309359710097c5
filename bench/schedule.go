// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	scheduledPods     = 10_000
	upstreamScheduled = 231 // pods a second, kube-scheduler on 1,000 nodes
)

func node(name string, zone int) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%[1]q,"labels":{"kubernetes.io/hostname":%[1]q,"topology.kubernetes.io/zone":"zone-%[2]d"}},`+
		`"status":{"capacity":{"cpu":"32","memory":"256Gi","pods":"110"},"allocatable":{"cpu":"32","memory":"256Gi","pods":"110"},`+
		`"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady"}]}}`, name, zone)
}

// schedule is the scheduler end to end: nodes and pods are created from outside, and the time is from the first pod's
// create to the last pod's binding as a watch sees it.
func schedule(ctx context.Context, b *bench, add adder) (err error) {
	// one controller, and with it the scheduler
	s, err := start(ctx, b.binary, "--node", "none", "--controllers", "serviceaccount")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	ns, err := s.namespace(ctx)
	if err != nil {
		return err
	}
	if err := many(ctx, &s.target, 16, b.nodes, func(ctx context.Context, client *http.Client, i int) error {
		name := fmt.Sprintf("node-%05d", i)
		if err := expect(ctx, client, http.StatusCreated, "POST", s.config.Host+"/api/v1/nodes", "application/json", node(name, i%3)); err != nil {
			return err
		}
		// a new node is tainted as not ready, until a controller that does not run here finds that it is
		return expect(ctx, client, http.StatusOK, "PATCH", s.config.Host+"/api/v1/nodes/"+name, "application/merge-patch+json", `{"spec":{"taints":null}}`)
	}); err != nil {
		return err
	}
	base := s.config.Host + "/api/v1/namespaces/" + ns + "/pods"
	client, err := s.client(1)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	rv, err := newest(ctx, client, base)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	before, err := s.cpu()
	if err != nil {
		return err
	}
	began := time.Now()
	g, gctx := errgroup.WithContext(limited)
	g.Go(func() error {
		return untilAdded(gctx, &s.target, base+"?watch=1&fieldSelector=spec.nodeName!%3D&resourceVersion="+rv, scheduledPods, func() error { return nil })
	})
	g.Go(func() error {
		return many(gctx, &s.target, 16, scheduledPods, func(ctx context.Context, client *http.Client, i int) error {
			return expect(ctx, client, http.StatusCreated, "POST", base, "application/json", pod(fmt.Sprintf("web-%05d", i)))
		})
	})
	if err := g.Wait(); err != nil {
		return err
	}
	took := time.Since(began)
	after, err := s.cpu()
	if err != nil {
		return err
	}
	add(fmt.Sprintf("pods scheduled, %s nodes, %s pods created from outside meanwhile, default plug-ins", number(float64(b.nodes)), number(scheduledPods)),
		value{unit: "/s", number: scheduledPods / took.Seconds(), bound: timesOf(upstreamScheduled, 10)},
		value{name: "CPU of create, scheduling and binding", unit: "ms", number: ms(after-before) / scheduledPods})
	return nil
}
