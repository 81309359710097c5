// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package local_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/local"
)

// BenchmarkCommit is the budget of the engine alone: so many writers, 1 KB values, each commit on disk when it returns.
func BenchmarkCommit(b *testing.B) {
	for _, writers := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			e, err := local.Open(b.TempDir(), local.Options{})
			if err != nil {
				b.Fatal(err)
			}
			ctx := context.Background()
			var next atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			for w := range writers {
				wg.Go(func() {
					for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
						value := make([]byte, 1024)
						copy(value, fmt.Sprint(w, i))
						if _, _, err := e.Commit(ctx, store.Op{Key: fmt.Sprintf("/registry/configmaps/w%d/k%d", w, i%400), Value: value, Expect: store.Any}); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
			if err := e.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkOpen is the replay of 100,000 keys of 1 KB.
func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	e, err := local.Open(dir, local.Options{})
	if err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	for w := range 100 {
		wg.Go(func() {
			for i := range 1000 {
				if _, _, err := e.Commit(context.Background(), store.Op{Key: fmt.Sprintf("/registry/configmaps/w%d/k%d", w, i), Value: make([]byte, 1024)}); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := e.Close(); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	for range b.N {
		began := time.Now()
		e, err := local.Open(dir, local.Options{})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms/open")
		if e.Size().Keys != 100_000 {
			b.Fatalf("%d keys", e.Size().Keys)
		}
		if err := e.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
