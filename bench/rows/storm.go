// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

const (
	stormPods = 50_000
	stormFor  = 2 * time.Second // that each sort of request is measured for, while pods are bound

	quietGet    = 3 // milliseconds, the budgets of a user's p99 beside a storm
	quietCreate = 6
)

// quietly is what a quiet user does now and then.
type quietly struct {
	what  string
	limit float64 // of the p99 beside a storm, in milliseconds
	do    load.Does
}

// quietRequests are the GET and the create of a ConfigMap in a namespace that has the thousand of them.
func quietRequests(base string) []quietly {
	var serial atomic.Int64
	name := some(base+"/configmaps", thousand)
	return []quietly{
		{"GETs", quietGet, func(ctx context.Context, client *http.Client) error {
			return load.Expect(ctx, client, http.StatusOK, "GET", name(), "", "")
		}},
		{"creates", quietCreate, func(ctx context.Context, client *http.Client) error {
			return load.Expect(ctx, client, http.StatusCreated, "POST", base+"/configmaps", "application/json",
				configMap(fmt.Sprint("q-", serial.Add(1)), kilobyte))
		}},
	}
}

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
	var began, ended, measured time.Time
	begun := make(chan struct{})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		err := load.UntilAdded(ctx, &s.Target, base+"/pods?watch=1&labelSelector=color&fieldSelector=spec.nodeName!%3D&resourceVersion="+rv,
			c.pods, func() error {
				began = time.Now()
				close(begun)
				return nil
			})
		ended = time.Now()
		return err
	})
	var quiet []paced
	g.Go(func() error {
		select {
		case <-begun:
		case <-ctx.Done():
			return ctx.Err()
		}
		for _, q := range quietRequests(base) {
			is, err := runPaced(ctx, &s.Target, stormFor, token, q.do)
			if err != nil {
				return err
			}
			quiet = append(quiet, is)
		}
		measured = time.Now()
		return nil
	})
	if err := g.Wait(); err != nil {
		return err
	}
	for i, q := range quietRequests(base) {
		add(fmt.Sprintf("quiet user's %s while pods are bound", q.what),
			report.Value{Name: "p99", Unit: "ms", Number: quiet[i].p99, Bound: report.AtMost(q.limit)},
			report.Value{Name: "p50", Unit: "ms", Number: quiet[i].p50}, report.Value{Name: "p99 of all", Unit: "ms", Number: quiet[i].allP99},
			report.Value{Name: "met processors standing still", Unit: "%", Number: quiet[i].stood})
	}
	during := "all the while"
	if measured.After(ended) {
		during = fmt.Sprintf("for %.0f %% of the while", 100*ended.Sub(began).Seconds()/measured.Sub(began).Seconds())
	}
	add("  pods bound meanwhile", report.Value{Unit: "/s", Number: float64(c.pods-1) / ended.Sub(began).Seconds()}, report.Value{Text: during})
	return nil
}
