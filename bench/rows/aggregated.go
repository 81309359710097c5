// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

const (
	aggregatedChild = "be-aggregated" // argument that has the binary be an aggregated API server
	aggregatedPart  = 1 << 20         // of one answer
	aggregatedParts = 64              // of one round
	aggregatedTurns = 7               // of rounds, direct and through the proxy
	aggregatedCrowd = 1000            // watches
	aggregatedTells = 100             // events to each of them
	aggregatedPath  = "/apis/bulk.example.com/v1/things"
)

// beAggregated serves bulk.example.com/v1 until its input ends: answers of a mebibyte, and watches that all get an event
// for each POST.
func beAggregated(in io.Reader, out io.Writer) error {
	part := bytes.Repeat([]byte("0123456789abcde\n"), aggregatedPart/16)
	var mu sync.Mutex
	watchers := map[chan []byte]bool{}
	return serveAggregated(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.TrimSuffix(r.URL.Path, "/") == "/apis/bulk.example.com/v1":
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"bulk.example.com/v1","resources":[{"name":"things","singularName":"thing","namespaced":false,"kind":"Thing","verbs":["get"]}]}`)
		case r.URL.Path != aggregatedPath:
			http.NotFound(w, r)
		case r.Method == http.MethodPost:
			event, _ := io.ReadAll(r.Body)
			mu.Lock()
			for c := range watchers {
				c <- event
			}
			mu.Unlock()
		case r.URL.Query().Get("watch") != "":
			c := make(chan []byte, aggregatedTells)
			mu.Lock()
			watchers[c] = true
			mu.Unlock()
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			for {
				select {
				case event := <-c:
					_, _ = w.Write(event)
					w.(http.Flusher).Flush()
				case <-r.Context().Done():
					mu.Lock()
					delete(watchers, c)
					mu.Unlock()
					return
				}
			}
		default:
			_, _ = w.Write(part)
		}
	}), in, out)
}

// aggregated is what the way through the proxy costs: bulk, and many watches.
func aggregated(ctx context.Context, b *bench, add adder) (err error) {
	address, stop, err := startAggregated(ctx, aggregatedChild)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	s, err := load.Start(ctx, b.binary, load.Bare...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	client, err := s.Streams()
	if err != nil {
		return err
	}
	if err := register(ctx, client, s.Config.Host, address, "bulk.example.com", "v1"); err != nil {
		return err
	}
	direct := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true,
		DisableCompression: true}}
	plain, err := s.Client(1)
	if err != nil {
		return err
	}
	straight := &http.Client{Transport: &http.Transport{ // as plain is
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
		MaxConnsPerHost: 1, DisableCompression: true, ReadBufferSize: 32 << 10,
	}}
	if err := bulk(ctx, straight, plain, s, "https://"+address, add); err != nil {
		return err
	}
	return watched(ctx, direct, client, s, "https://"+address, add)
}

// bulk reads the same bytes from the server and through the proxy, in turns.
func bulk(ctx context.Context, direct, client *http.Client, s *load.Server, at string, add adder) error {
	// every: when the next is asked for; 0: when the last has come
	round := func(c *http.Client, url string, every time.Duration) (time.Duration, error) {
		var due <-chan time.Time
		if every > 0 {
			t := time.NewTicker(every)
			defer t.Stop()
			due = t.C
		}
		began := time.Now()
		for range aggregatedParts {
			if due != nil {
				<-due
			}
			r, err := http.NewRequestWithContext(ctx, "GET", url+aggregatedPath, nil)
			if err != nil {
				return 0, err
			}
			resp, err := c.Do(r)
			if err != nil {
				return 0, err
			}
			n, err := io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			if err != nil || n != aggregatedPart {
				return 0, errors.Join(fmt.Errorf("read %d bytes with status %d", n, resp.StatusCode), err)
			}
		}
		return time.Since(began), nil
	}
	var straight, around []time.Duration
	var spent time.Duration
	for n := range aggregatedTurns + 1 {
		d, err := round(direct, at, 0)
		if err != nil {
			return fmt.Errorf("read directly: %w", err)
		}
		before, err := s.Cpu()
		if err != nil {
			return err
		}
		p, err := round(client, s.Config.Host, 0)
		if err != nil {
			return fmt.Errorf("read through the proxy: %w", err)
		}
		after, err := s.Cpu()
		if err != nil {
			return err
		}
		if n > 0 { // the first warms up
			straight, around, spent = append(straight, d), append(around, p), spent+after-before
		}
	}
	slices.Sort(straight)
	slices.Sort(around)
	const megabytes = aggregatedPart * aggregatedParts / 1e6
	direct50, p := straight[len(straight)/2], around[len(around)/2]
	add("64 MiB in 64 answers, straight from an aggregated server", report.Value{Unit: "MB/s", Number: megabytes / direct50.Seconds()})
	add("the same through the proxy", report.Value{Unit: "MB/s", Number: megabytes / p.Seconds(),
		Bound: report.Bound{Limit: 64, Budgeted: true, Least: true}},
		report.Value{Name: "CPU of the proxy per MB", Unit: "ms", Number: load.Ms(spent) / megabytes / aggregatedTurns})
	add("  time of that through the proxy, of that straight", report.Value{Number: p.Seconds() / direct50.Seconds()})
	const pace = time.Second * aggregatedPart / 64e6
	d, err := round(direct, at, pace)
	if err != nil {
		return fmt.Errorf("read directly: %w", err)
	}
	if p, err = round(client, s.Config.Host, pace); err != nil {
		return fmt.Errorf("read through the proxy: %w", err)
	}
	add("  the same of 64 MB asked for at 64 MB/s", report.Value{Number: p.Seconds() / d.Seconds(), Bound: report.AtMost(1.3)})
	return nil
}

// watched opens many watches through the proxy and times how long all of them take to be told.
func watched(ctx context.Context, direct, client *http.Client, s *load.Server, at string, add adder) error {
	_, before, err := s.Memory()
	if err != nil {
		return err
	}
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	told := make(chan error, aggregatedCrowd)
	var g errgroup.Group
	g.SetLimit(64)
	var readers sync.WaitGroup
	for range aggregatedCrowd {
		g.Go(func() error {
			r, err := http.NewRequestWithContext(inner, "GET", s.Config.Host+aggregatedPath+"?watch=1", nil)
			if err != nil {
				return err
			}
			resp, err := client.Do(r)
			if err != nil {
				return fmt.Errorf("begin watch: %w", err)
			}
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("begin watch: status %d", resp.StatusCode)
			}
			readers.Go(func() {
				defer resp.Body.Close()
				lines := bufio.NewScanner(resp.Body)
				for lines.Scan() {
					told <- nil
				}
				if inner.Err() == nil {
					told <- errors.Join(errors.New("a watch ended"), lines.Err())
				}
			})
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	_, with, err := s.Memory()
	if err != nil {
		return err
	}
	spent, err := s.Cpu()
	if err != nil {
		return err
	}
	began := time.Now()
	event := `{"type":"MODIFIED","object":{"kind":"Thing","apiVersion":"bulk.example.com/v1","metadata":{"name":"a","resourceVersion":"1"}}}` +
		"\n"
	for range aggregatedTells {
		if err := load.Expect(ctx, direct, http.StatusOK, "POST", at+aggregatedPath, "application/json", event); err != nil {
			return err
		}
		for range aggregatedCrowd {
			select {
			case err := <-told:
				if err != nil {
					return err
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	took := time.Since(began)
	after, err := s.Cpu()
	if err != nil {
		return err
	}
	cancel()
	readers.Wait()
	events := float64(aggregatedCrowd * aggregatedTells)
	add("1,000 watches through the proxy: events to all of them", report.Value{Unit: "/s", Number: events / took.Seconds()},
		report.Value{Name: "CPU", Unit: "µs", Number: float64((after - spent).Microseconds()) / events},
		report.Value{Name: "memory a watch", Unit: "KB", Number: float64(with-before) / aggregatedCrowd / 1000})
	return nil
}
