// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package local_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/local"
)

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
				if _, _, err := e.Commit(context.Background(),
					store.Op{Key: fmt.Sprintf("/registry/configmaps/w%d/k%d", w, i), Value: make([]byte, 1024)}); err != nil {
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
