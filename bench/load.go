// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

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
)

// result is what a closed loop measured.
type result struct {
	rate, cpu, p50, p99 float64 // operations a second; milliseconds
}

// values are the result's, with bounds on the rate and on the CPU.
func (r result) values(rate, cpu bound) []value {
	return []value{
		{unit: "/s", number: r.rate, bound: rate}, {name: "CPU", unit: "ms", number: r.cpu, bound: cpu},
		{name: "p50", unit: "ms", number: r.p50}, {name: "p99", unit: "ms", number: r.p99},
	}
}

// does is one operation of a closed loop.
type does func(ctx context.Context, client *http.Client) error

// loop lets n clients do one thing over and over for a while.
func loop(ctx context.Context, t *target, n int, length time.Duration, do does) (result, error) {
	client, err := t.client(n)
	if err != nil {
		return result{}, err
	}
	defer client.CloseIdleConnections()
	if err := do(ctx, client); err != nil { // warm
		return result{}, err
	}
	before, err := t.cpu()
	if err != nil {
		return result{}, err
	}
	began := time.Now()
	var mu sync.Mutex
	var all []time.Duration
	g, ctx := errgroup.WithContext(ctx)
	for range n {
		g.Go(func() error {
			var own []time.Duration
			for time.Since(began) < length {
				t := time.Now()
				if err := do(ctx, client); err != nil {
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
		return result{}, err
	}
	elapsed := time.Since(began)
	after, err := t.cpu()
	if err != nil {
		return result{}, err
	}
	return result{
		rate: float64(len(all)) / elapsed.Seconds(), cpu: ms(after-before) / float64(len(all)),
		p50: quantile(all, 50), p99: quantile(all, 99),
	}, nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// quantile is the percentile in milliseconds. It sorts all.
func quantile(all []time.Duration, percent int) float64 {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return ms(all[len(all)*percent/100])
}

// many does do(1) … do(n), so many at once.
func many(ctx context.Context, t *target, at, n int, do func(ctx context.Context, client *http.Client, i int) error) error {
	client, err := t.client(at)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range at {
		g.Go(func() error {
			for i := int(next.Add(1)); i <= n; i = int(next.Add(1)) {
				if err := do(ctx, client, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// say does one request and reads the whole answer.
func say(ctx context.Context, client *http.Client, method, url, contentType, body string) (int, []byte, error) {
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

// expect does one request and wants one status.
func expect(ctx context.Context, client *http.Client, want int, method, url, contentType, body string) error {
	status, answer, err := say(ctx, client, method, url, contentType, body)
	if err != nil {
		return err
	}
	if status != want {
		return fmt.Errorf("%s %s: status %d: %.300s", method, url, status, answer)
	}
	return nil
}
