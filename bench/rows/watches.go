// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

const (
	fanWatchers = 200
	fanWindow   = 64 // events that may be on their way: fewer than what upstream buffers for a watcher
)

// crowd is many watches of one collection. All see the same events in the same order, so that the n-th event of one is the
// n-th of all.
type crowd struct {
	watchers int
	seen     [fanWindow]atomic.Int64 // how many have seen the n-th event, modulo the window
	told     chan time.Time          // when the last watcher has seen an event
	end      context.CancelFunc
	group    sync.WaitGroup
	ended    atomic.Bool
	failure  atomic.Pointer[error]
	broken   chan struct{}
	breaking sync.Once
}

// gather begins n watches, all after the revision that the collection has now.
func gather(ctx context.Context, client *http.Client, url string, n int) (*crowd, error) {
	return gatherBy(ctx, url, n, func(int) *http.Client { return client })
}

// gatherBy is gather with a client for the i-th watch.
func gatherBy(ctx context.Context, url string, n int, client func(i int) *http.Client) (*crowd, error) {
	rv, err := newest(ctx, client(0), url)
	if err != nil {
		return nil, err
	}
	inner, cancel := context.WithCancel(ctx)
	c := &crowd{watchers: n, told: make(chan time.Time, fanWindow), end: cancel, broken: make(chan struct{})}
	err = beginWatches(ctx, inner, n, func(i int) (*http.Client, string) {
		return client(i), url + "?watch=1&timeoutSeconds=3600&resourceVersion=" + rv
	}, func(body io.ReadCloser) { c.group.Go(func() { c.read(body) }) })
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// beginWatches begins n watches, which last until watching ends, and hands over the body of each.
func beginWatches(ctx, watching context.Context, n int, of func(i int) (*http.Client, string), read func(body io.ReadCloser)) error {
	g, begin := errgroup.WithContext(ctx)
	g.SetLimit(64)
	for i := range n {
		g.Go(func() error {
			if err := begin.Err(); err != nil {
				return err
			}
			client, url := of(i)
			request, err := http.NewRequestWithContext(watching, "GET", url, nil)
			if err != nil {
				return err
			}
			response, err := client.Do(request)
			if err != nil {
				return fmt.Errorf("begin watch: %w", err)
			}
			if response.StatusCode != http.StatusOK {
				return errors.Join(fmt.Errorf("begin watch: status %d", response.StatusCode), response.Body.Close())
			}
			read(response.Body)
			return nil
		})
	}
	return g.Wait()
}

// read counts lines, which are events.
func (c *crowd) read(body io.ReadCloser) {
	buf := make([]byte, 4<<10)
	var n int64
	for {
		k, err := body.Read(buf)
		for range bytes.Count(buf[:k], []byte{'\n'}) {
			slot := &c.seen[n%fanWindow]
			n++
			if slot.Add(1) == int64(c.watchers) {
				slot.Store(0)
				c.told <- time.Now()
			}
		}
		if err != nil {
			if !c.ended.Load() {
				err = fmt.Errorf("a watch ended after %d events: %w", n, err)
				c.breaking.Do(func() { c.failure.Store(&err); close(c.broken) })
			}
			_ = body.Close() // its end has been seen
			return
		}
	}
}

// last is when the last watcher has seen the next event.
func (c *crowd) last(ctx context.Context) (time.Time, error) {
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	select {
	case at := <-c.told:
		return at, nil
	case <-c.broken:
		return time.Time{}, *c.failure.Load()
	case <-limit.C:
		return time.Time{}, errors.New("an event did not reach all watchers within a minute")
	case <-ctx.Done():
		return time.Time{}, ctx.Err()
	}
}

func (c *crowd) close() {
	c.ended.Store(true)
	c.end()
	c.group.Wait()
}

// fanOut is events to many watchers with a connection each, as many as the server can deliver: a writer waits when the
// window is full.
func fanOut(ctx context.Context, b *bench, t *load.Target, add adder) error {
	base, err := stored(ctx, t, 16)
	if err != nil {
		return err
	}
	for _, m := range []struct {
		what   string
		client func() (*http.Client, error)
	}{
		{"a connection each", func() (*http.Client, error) { return t.Client(fanWatchers + 1) }},
		{"HTTP/2, shared connections", t.Streams},
	} {
		client, err := m.client()
		if err != nil {
			return err
		}
		c, err := gather(ctx, client, base, fanWatchers)
		if err != nil {
			return err
		}
		events, elapsed, cpu, err := flood(ctx, t, c, base, flooding{length: b.length()})
		c.close()
		client.CloseIdleConnections()
		if err != nil {
			return err
		}
		delivered := float64(events * fanWatchers)
		add(fmt.Sprintf("watch events of 1 KB to %d watchers, %s, writes included", fanWatchers, m.what),
			report.Value{Unit: "/s", Number: delivered / elapsed.Seconds(), Bound: report.TimesOf(37_000, 2)},
			report.Value{Name: "CPU", Unit: "µs", Number: float64(cpu.Microseconds()) / delivered, Bound: report.ShareOf(54, 1.0/4)})
	}
	return nil
}

// flooding is how much is written: for how long, and how often by each of the writers, 0: as often as the window allows.
type flooding struct {
	length, every time.Duration
}

// writers are how many clients write in a flood.
const writers = 4

// flood writes for a while, and returns how many events all watchers have seen.
func flood(ctx context.Context, t *load.Target, c *crowd, base string, f flooding) (events int, elapsed, cpu time.Duration, err error) {
	before, err := t.Cpu()
	if err != nil {
		return 0, 0, 0, err
	}
	window := make(chan struct{}, fanWindow)
	began := time.Now()
	var written atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	client, err := t.Client(writers)
	if err != nil {
		return 0, 0, 0, err
	}
	defer client.CloseIdleConnections()
	var writing sync.WaitGroup
	for w := range writers {
		writing.Add(1)
		g.Go(func() error {
			defer writing.Done()
			var due <-chan time.Time
			if f.every > 0 {
				ticker := time.NewTicker(f.every)
				defer ticker.Stop()
				due = ticker.C
			}
			for i := 0; time.Since(began) < f.length; i++ {
				if due != nil {
					<-due
				}
				select {
				case window <- struct{}{}:
				case <-ctx.Done():
					return ctx.Err()
				}
				name := fmt.Sprintf("m-%d", 1+w*writers+i%writers)
				if err := load.Expect(ctx, client, http.StatusOK, "PUT", base+"/"+name, "application/json",
					configMap(name, fmt.Sprint(i, kilobyte))); err != nil {
					return err
				}
				written.Add(1)
			}
			return nil
		})
	}
	done := make(chan struct{})
	go func() { writing.Wait(); close(done) }()
	g.Go(func() error {
		over := done
		for {
			if over == nil && int64(events) == written.Load() {
				return nil
			}
			select {
			case <-c.told:
				events++
				<-window
			case <-over:
				over = nil
			case <-c.broken:
				return *c.failure.Load()
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	if err := g.Wait(); err != nil {
		return 0, 0, 0, err
	}
	elapsed = time.Since(began)
	after, err := t.Cpu()
	return events, elapsed, after - before, err
}

// latencies writes n times, and measures each time until the last watcher knows.
func latencies(ctx context.Context, t *load.Target, c *crowd, base string, n int) ([]time.Duration, error) {
	client, err := t.Client(1)
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	var all []time.Duration
	for i := range n {
		began := time.Now()
		if err := load.Expect(ctx, client, http.StatusOK, "PUT", base+"/m-1", "application/json",
			configMap("m-1", fmt.Sprint(i, began.UnixNano(), kilobyte))); err != nil {
			return nil, err
		}
		at, err := c.last(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, at.Sub(began))
	}
	return all, nil
}
