// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mortise-dev/mortise/store"
)

// Bench runs the benchmarks of an engine.
func Bench(b *testing.B, factory Factory) {
	for _, writers := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("Commit/writers=%d", writers), func(b *testing.B) { benchCommit(b, factory, writers) })
	}
	b.Run("Get", func(b *testing.B) {
		s := filled(b, factory, 10_000)
		b.ReportAllocs()
		for i := range b.N {
			if r, _, err := s.Get(context.Background(), benchKey(i%10_000)); r == nil || err != nil {
				b.Fatal(r, err)
			}
		}
	})
	b.Run("List/keys=5000", func(b *testing.B) {
		s := filled(b, factory, 5000)
		b.ReportAllocs()
		for range b.N {
			if page, err := s.List(context.Background(), "/registry/configmaps/"); len(page.Records) != 5000 || err != nil {
				b.Fatal(len(page.Records), err)
			}
		}
	})
	b.Run("Page/limit=500", func(b *testing.B) {
		s := filled(b, factory, 50_000)
		b.ReportAllocs()
		for range b.N {
			page, err := s.Range(context.Background(), store.Range{Prefix: "/registry/configmaps/", Limit: 500})
			if page.Remaining != 49_500 || err != nil {
				b.Fatal(page.Remaining, err)
			}
		}
	})
	b.Run("Watch/watchers=200", func(b *testing.B) { benchWatch(b, factory, 200) })
}

func benchOpen(b *testing.B, factory Factory) *store.Store {
	engine, err := factory(b, NewClock())()
	if err != nil {
		b.Fatal(err)
	}
	s := store.New(engine)
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	return s
}

func benchKey(i int) string { return fmt.Sprintf("/registry/configmaps/ns%d/%d", i%50, i) }

// filled returns a store with n keys of 1 KB.
func filled(b *testing.B, factory Factory, n int) *store.Store {
	s := benchOpen(b, factory)
	for i := 0; i < n; i += 500 {
		var ops []store.Op
		for j := i; j < min(i+500, n); j++ {
			ops = append(ops, store.Op{Key: benchKey(j), Value: make([]byte, 1024)})
		}
		if _, _, err := s.Commit(context.Background(), ops...); err != nil {
			b.Fatal(err)
		}
	}
	b.ResetTimer()
	return s
}

// benchCommit measures writers that each wait for their commit of 1 KB.
func benchCommit(b *testing.B, factory Factory, writers int) {
	s := benchOpen(b, factory)
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for w := range writers {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				key := fmt.Sprintf("/registry/configmaps/ns%d/%d", w, i%400)
				if _, err := s.Update(context.Background(), key, store.Any, make([]byte, 1024), 0); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
}

// benchWatch measures one writer and watchers that see all its changes.
func benchWatch(b *testing.B, factory Factory, watchers int) {
	s := benchOpen(b, factory)
	var wg sync.WaitGroup
	for range watchers {
		w, err := s.Watch(context.Background(), "/registry/configmaps/", s.Revision())
		if err != nil {
			b.Fatal(err)
		}
		wg.Go(func() {
			defer w.Close()
			for seen := 0; seen < b.N; {
				batch, err := w.Next(context.Background())
				if err != nil {
					b.Error(err)
					return
				}
				seen += len(batch.Events)
			}
		})
	}
	b.ResetTimer()
	for i := range b.N {
		if _, err := s.Update(context.Background(), benchKey(i%1000), store.Any, []byte("x"), 0); err != nil {
			b.Fatal(err)
		}
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)*float64(watchers)/b.Elapsed().Seconds(), "events/s")
}
