// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

const (
	stormPods = 50_000
	stormFor  = 2 * time.Second // that each sort of request is measured for, while pods are bound
)

// storm is what a quiet user notices of a scheduler that binds pods as fast as it can.
func storm(ctx context.Context, b *bench, add adder) (err error) {
	c := waiting{nodes: b.Nodes, pods: stormPods, pod: likePods(requests)}
	s, err := load.Start(ctx, b.binary, append(load.Bare, "--disable-admission-plugins", "TaintNodesByCondition")...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	path, rv, err := c.create(ctx, s)
	if err != nil {
		return err
	}
	namespace := strings.TrimSuffix(path, "/pods")
	if err := fill(ctx, &s.Target, s.Config.Host+namespace+"/configmaps", 0, thousand); err != nil {
		return err
	}
	token, err := createAccount(ctx, &s.Target, namespace[strings.LastIndexByte(namespace, '/')+1:], "quiet")
	if err != nil {
		return err
	}
	if err := s.Again(ctx, b.binary, "--node", "none", "--controllers", "serviceaccount", "--disable-admission-plugins",
		"TaintNodesByCondition"); err != nil {
		return err
	}
	base := s.Config.Host + namespace
	var began, ended time.Time
	var over int64 // on the clock of all processes
	begun := make(chan struct{})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		err := load.UntilAdded(ctx, &s.Target, base+"/pods?watch=1&labelSelector=color&fieldSelector=spec.nodeName!%3D&resourceVersion="+rv,
			c.pods, func() error {
				began = time.Now()
				close(begun)
				return nil
			})
		if err != nil {
			return err
		}
		ended = time.Now()
		over, err = monotonic()
		return err
	})
	var quiet []*heard
	g.Go(func() error {
		var asks []func() (*heard, error)
		for _, q := range quietRequests() {
			ask, err := summon(ctx, &quietClient{Base: base, Token: token, What: q.what, For: stormFor})
			if err != nil {
				return err
			}
			asks = append(asks, ask)
		}
		select {
		case <-begun:
		case <-ctx.Done():
			return ctx.Err()
		}
		for _, ask := range asks {
			is, err := ask()
			if err != nil {
				return err
			}
			quiet = append(quiet, is)
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return err
	}
	for i, q := range quietRequests() {
		what := fmt.Sprintf("quiet user's %s while pods are bound", q.what)
		is, err := quiet[i].until(over)
		if err != nil {
			add(what, report.Value{Text: "not measured: " + err.Error(), Bound: report.AtMost(0), Number: 1})
			continue
		}
		add(what,
			report.Value{Name: "p99", Unit: "ms", Number: is.p99, Bound: report.AtMost(q.limit)},
			report.Value{Name: "p50", Unit: "ms", Number: is.p50}, report.Value{Name: "p99 of all", Unit: "ms", Number: is.allP99},
			report.Value{Name: "met processors standing still", Unit: "%", Number: is.stood}, report.Value{Text: fmt.Sprintf("%d of them", is.n)})
	}
	add("  pods bound meanwhile", report.Value{Unit: "/s", Number: float64(c.pods-1) / ended.Sub(began).Seconds()})
	return nil
}
