// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package load drives the measured server: it starts and stops one ([Server]), or finds a running one ([Target]), reads its
// costs from /proc, runs closed loops of clients against it, and observes watches at little cost of its own.
package load

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mortise-dev/mortise/bench/report"
)

// Result is what a closed loop measured.
type Result struct {
	Rate, Cpu, P50, P99 float64 // operations a second; milliseconds
}

// Values are the result's, with bounds on the rate and on the CPU.
func (r Result) Values(rate, cpu report.Bound) []report.Value {
	return []report.Value{
		{Unit: "/s", Number: r.Rate, Bound: rate}, {Name: "CPU", Unit: "ms", Number: r.Cpu, Bound: cpu},
		{Name: "p50", Unit: "ms", Number: r.P50}, {Name: "p99", Unit: "ms", Number: r.P99},
	}
}

// Does is one operation of a closed loop.
type Does func(ctx context.Context, client *http.Client) error

// Loop lets n clients of HTTP/1.1 do one thing over and over for a while.
func Loop(ctx context.Context, t *Target, n int, length time.Duration, do Does) (Result, error) {
	client, err := t.Client(n)
	if err != nil {
		return Result{}, err
	}
	defer client.CloseIdleConnections()
	return Repeat(ctx, t, n, length, func(ctx context.Context, _ int) error { return do(ctx, client) })
}

// Repeat calls do over and over for a while, in n loops, with the number of the loop, from 0.
func Repeat(ctx context.Context, t *Target, n int, length time.Duration, do func(ctx context.Context, loop int) error) (Result, error) {
	if err := do(ctx, 0); err != nil { // warm
		return Result{}, err
	}
	before, err := t.Cpu()
	if err != nil {
		return Result{}, err
	}
	began := time.Now()
	var mu sync.Mutex
	var all []time.Duration
	g, ctx := errgroup.WithContext(ctx)
	for loop := range n {
		g.Go(func() error {
			var own []time.Duration
			for time.Since(began) < length {
				t := time.Now()
				if err := do(ctx, loop); err != nil {
					return err
				}
				own = append(own, time.Since(t))
			}
			mu.Lock()
			all = append(all, own...)
			mu.Unlock()
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return Result{}, err
	}
	elapsed := time.Since(began)
	after, err := t.Cpu()
	if err != nil {
		return Result{}, err
	}
	return Result{
		Rate: float64(len(all)) / elapsed.Seconds(), Cpu: Ms(after-before) / float64(len(all)),
		P50: Quantile(all, 50), P99: Quantile(all, 99),
	}, nil
}

func Ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Quantile is the percentile in milliseconds. It sorts all.
func Quantile(all []time.Duration, percent int) float64 {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return Ms(all[len(all)*percent/100])
}

// Many calls do(1) … do(n), that many concurrently, with a client of HTTP/1.1.
func Many(ctx context.Context, t *Target, at, n int, do func(ctx context.Context, client *http.Client, i int) error) error {
	client, err := t.Client(at)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	return ManyTimes(ctx, at, n, func(ctx context.Context, _, i int) error { return do(ctx, client, i) })
}

// ManyTimes calls do with 1 … n in so many loops, with the number of the loop, from 0.
func ManyTimes(ctx context.Context, loops, n int, do func(ctx context.Context, loop, i int) error) error {
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for loop := range loops {
		g.Go(func() error {
			for i := int(next.Add(1)); i <= n; i = int(next.Add(1)) {
				if err := do(ctx, loop, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// Say does one request and reads the whole answer.
func Say(ctx context.Context, client *http.Client, method, url, contentType, body string) (int, []byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

// Expect does one request and wants one status.
func Expect(ctx context.Context, client *http.Client, want int, method, url, contentType, body string) error {
	status, answer, err := Say(ctx, client, method, url, contentType, body)
	if err != nil {
		return err
	}
	if status != want {
		return fmt.Errorf("%s %s: status %d: %.300s", method, url, status, answer)
	}
	return nil
}
