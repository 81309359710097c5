// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
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
	s, err := load.Start(ctx, b.binary, "--node", "none", "--controllers", "serviceaccount")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	ns, err := s.Namespace(ctx)
	if err != nil {
		return err
	}
	if err := load.Many(ctx, &s.Target, 16, b.Nodes, func(ctx context.Context, client *http.Client, i int) error {
		name := fmt.Sprintf("node-%05d", i)
		if err := load.Expect(ctx, client, http.StatusCreated, "POST", s.Config.Host+"/api/v1/nodes", "application/json",
			node(name, i%3)); err != nil {
			return err
		}
		// a new node is tainted as not ready, until a controller that does not run here finds that it is
		return load.Expect(ctx, client, http.StatusOK, "PATCH", s.Config.Host+"/api/v1/nodes/"+name, "application/merge-patch+json",
			`{"spec":{"taints":null}}`)
	}); err != nil {
		return err
	}
	base := s.Config.Host + "/api/v1/namespaces/" + ns + "/pods"
	client, err := s.Client(1)
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
	before, err := s.Cpu()
	if err != nil {
		return err
	}
	began := time.Now()
	g, gctx := errgroup.WithContext(limited)
	g.Go(func() error {
		return load.UntilAdded(gctx, &s.Target, base+"?watch=1&fieldSelector=spec.nodeName!%3D&resourceVersion="+rv, scheduledPods,
			func() error { return nil })
	})
	g.Go(func() error {
		return load.Many(gctx, &s.Target, 16, scheduledPods, func(ctx context.Context, client *http.Client, i int) error {
			return load.Expect(ctx, client, http.StatusCreated, "POST", base, "application/json", pod(fmt.Sprintf("web-%05d", i)))
		})
	})
	if err := g.Wait(); err != nil {
		return err
	}
	took := time.Since(began)
	after, err := s.Cpu()
	if err != nil {
		return err
	}
	add(fmt.Sprintf("pods scheduled, %s nodes, %s pods created from outside meanwhile, default plug-ins", report.Number(float64(b.Nodes)),
		report.Number(scheduledPods)),
		report.Value{Unit: "/s", Number: scheduledPods / took.Seconds(), Bound: report.TimesOf(upstreamScheduled, 10)},
		report.Value{Name: "CPU of create, scheduling and binding", Unit: "ms", Number: load.Ms(after-before) / scheduledPods})
	return nil
}
