// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
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

// measureStarts is exec → ready on an empty data directory, with everything on.
func measureStarts(ctx context.Context, out *report, binary string, n int) error {
	var took []time.Duration
	for range n {
		s, err := start(ctx, binary, "--node", "simulated")
		if err != nil {
			return err
		}
		took = append(took, s.ready)
		if err := s.stop(); err != nil {
			return err
		}
	}
	slices.Sort(took)
	out.add("exec → ready, empty data directory, median of "+fmt.Sprint(n), "≤ 250 ms", "%d ms (%d to %d)", took[n/2].Milliseconds(), took[0].Milliseconds(), took[n-1].Milliseconds())
	return nil
}

// measureRest is memory with all controllers, the scheduler and a node, once a Deployment has come up and nothing happens.
func measureRest(ctx context.Context, out *report, binary string) error {
	s, err := start(ctx, binary, "--node", "simulated")
	if err != nil {
		return err
	}
	defer s.stop()
	client, err := s.client(1)
	if err != nil {
		return err
	}
	// Ten seconds of a watch are ten seconds at rest: the server itself ends it.
	status, _, err := say(ctx, client, "GET", s.config.Host+"/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=10", "", "")
	if err != nil || status != http.StatusOK {
		return fmt.Errorf("watch for ten seconds: status %d: %w", status, err)
	}
	before, err := s.cpu()
	if err != nil {
		return err
	}
	resident, anonymous, err := s.memory()
	if err != nil {
		return err
	}
	if _, _, err = say(ctx, client, "GET", s.config.Host+"/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=10", "", ""); err != nil {
		return err
	}
	after, err := s.cpu()
	if err != nil {
		return err
	}
	out.add("resident memory at rest, all controllers and scheduler in", "≤ 80 MB", "%d MB (%d MB of it anonymous)", resident>>20, anonymous>>20)
	out.add("CPU at rest", "none", "%.1f ms/s", float64((after-before).Microseconds())/1000/10)
	return s.stop()
}

// measureRequests are closed loops against a bare API server with its store on disk.
func measureRequests(ctx context.Context, out *report, s *server, length time.Duration) error {
	value := strings.Repeat("x", 900)
	base := s.config.Host + "/api/v1/namespaces/default/configmaps"
	var serial atomic.Int64
	create := func(ctx context.Context, client *http.Client) error {
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m-%d"},"data":{"k":%q}}`, serial.Add(1), value)
		return expect(ctx, client, http.StatusCreated, "POST", base, "application/json", body)
	}
	for _, c := range []struct {
		clients       int
		upstream, cpu string
	}{{1, "960/s (4 × 240)", "0.9 ms"}, {16, "3,600/s (4 × 900)", "0.34 ms"}, {128, "5,508/s (4 × 1,377)", "0.24 ms"}} {
		r, err := loop(ctx, s, c.clients, length, create)
		if err != nil {
			return err
		}
		out.add(fmt.Sprintf("durable creates of 1 KB, %d clients", c.clients), c.upstream+", CPU ≤ "+c.cpu, "%.0f/s, CPU %.3f ms, p50 %.2f ms, p99 %.2f ms", r.rate, r.cpu, r.p50, r.p99)
	}
	var turn atomic.Int64
	most := serial.Load()
	name := func() string { return fmt.Sprintf("%s/m-%d", base, turn.Add(7919)%most+1) }
	requests := []struct {
		what, budget string
		do           func(ctx context.Context, client *http.Client) error
	}{
		{"GET, 16 clients", "CPU ≤ 0.15 ms", func(ctx context.Context, client *http.Client) error {
			return expect(ctx, client, http.StatusOK, "GET", name(), "", "")
		}},
		{"merge patch, 16 clients", "CPU ≤ 0.46 ms", func(ctx context.Context, client *http.Client) error {
			return expect(ctx, client, http.StatusOK, "PATCH", name(), "application/merge-patch+json", fmt.Sprintf(`{"data":{"p":"%d"}}`, turn.Add(1)))
		}},
		{"server-side apply, 16 clients", "CPU ≤ 0.38 ms", func(ctx context.Context, client *http.Client) error {
			n := serial.Add(1)
			body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a-%d"},"data":{"k":%q}}`, n, value)
			return expect(ctx, client, http.StatusCreated, "PATCH", fmt.Sprintf("%s/a-%d?fieldManager=bench", base, n), "application/apply-patch+yaml", body)
		}},
	}
	for _, q := range requests {
		r, err := loop(ctx, s, 16, length, q.do)
		if err != nil {
			return fmt.Errorf("%s: %w", q.what, err)
		}
		out.add(q.what, q.budget, "%.0f/s, CPU %.3f ms, p50 %.2f ms, p99 %.2f ms", r.rate, r.cpu, r.p50, r.p99)
	}
	client, err := s.client(1)
	if err != nil {
		return err
	}
	for _, media := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		took, bytes, err := list(ctx, client, base+"?limit=5000", media)
		if err != nil {
			return err
		}
		out.add("LIST of 5,000 ConfigMaps as "+media, "a tenth of upstream's", "%.1f ms, %.1f MB", float64(took.Microseconds())/1000, float64(bytes)/1e6)
	}
	return nil
}

// measureDefinition is a CRD's create until its first object is accepted.
func measureDefinition(ctx context.Context, out *report, s *server) error {
	client, err := s.client(1)
	if err != nil {
		return err
	}
	var took []time.Duration
	for i := range 20 {
		crd := fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"things%[1]d.bench.example.com"},"spec":{"group":"bench.example.com","scope":"Namespaced","names":{"plural":"things%[1]d","kind":"Thing%[1]d"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"n":{"type":"integer"}}}}}}}]}}`, i)
		object := fmt.Sprintf(`{"apiVersion":"bench.example.com/v1","kind":"Thing%d","metadata":{"name":"t"},"spec":{"n":1}}`, i)
		if err := expect(ctx, client, http.StatusCreated, "POST", s.config.Host+"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "application/json", crd); err != nil {
			return err
		}
		began := time.Now()
		if err := expect(ctx, client, http.StatusCreated, "POST", fmt.Sprintf("%s/apis/bench.example.com/v1/namespaces/default/things%d", s.config.Host, i), "application/json", object); err != nil {
			return err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	out.add("CRD: create returns → first CR accepted, median of 20", "≤ 10 ms", "%.1f ms", float64(took[10].Microseconds())/1000)
	return nil
}

// result is what a closed loop measured.
type result struct {
	rate, cpu, p50, p99 float64 // operations a second; milliseconds
}

// loop lets n clients do one thing over and over for a while.
func loop(ctx context.Context, s *server, n int, length time.Duration, do func(ctx context.Context, client *http.Client) error) (result, error) {
	client, err := s.client(n)
	if err != nil {
		return result{}, err
	}
	defer client.CloseIdleConnections()
	if err := do(ctx, client); err != nil { // warm
		return result{}, err
	}
	before, err := s.cpu()
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
	after, err := s.cpu()
	if err != nil {
		return result{}, err
	}
	slices.Sort(all)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return result{
		rate: float64(len(all)) / elapsed.Seconds(), cpu: ms(after-before) / float64(len(all)),
		p50: ms(all[len(all)/2]), p99: ms(all[len(all)*99/100]),
	}, nil
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

// list reads a list three times and returns the fastest, as the time until its last byte.
func list(ctx context.Context, client *http.Client, url, media string) (time.Duration, int64, error) {
	best, size := time.Hour, int64(0)
	for range 3 {
		request, err := http.NewRequestWithContext(ctx, "GET", url, nil)
		if err != nil {
			return 0, 0, err
		}
		request.Header.Set("Accept", media)
		began := time.Now()
		response, err := client.Do(request)
		if err != nil {
			return 0, 0, err
		}
		size, err = io.Copy(io.Discard, response.Body)
		if err := errors.Join(err, response.Body.Close()); err != nil {
			return 0, 0, err
		}
		if response.StatusCode != http.StatusOK {
			return 0, 0, fmt.Errorf("GET %s: status %d", url, response.StatusCode)
		}
		best = min(best, time.Since(began))
	}
	return best, size, nil
}
