// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/store"
)

// BenchmarkCommit is the engine alone, with one member: the CPU of this process for a create of 1 KB, by one caller and by several at once.
func BenchmarkCommit(b *testing.B) {
	c := launch(b, 1).ready(b)
	defer c.remove()
	engine := open(b, c)
	defer func() { must(b, engine.Close()) }()
	value := bytes.Repeat([]byte("x"), 1024)
	var serial atomic.Int64
	for _, callers := range []int{1, 16, 128} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			var left atomic.Int64
			left.Store(int64(b.N))
			before := used(b)
			var all sync.WaitGroup
			for range callers {
				all.Go(func() {
					for left.Add(-1) >= 0 {
						op := store.Op{Key: fmt.Sprintf("/registry/configmaps/default/c-%d", serial.Add(1)), Value: value}
						if _, _, err := engine.Commit(context.Background(), op); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			b.ReportMetric(float64((used(b)-before).Nanoseconds())/1000/float64(b.N), "cpu-µs/op")
		})
	}
}

// used is the CPU that this process has used.
func used(tb testing.TB) time.Duration {
	var u syscall.Rusage
	must(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
