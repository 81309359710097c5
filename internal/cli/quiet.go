// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"log/slog"
	"runtime"
	"runtime/metrics"
	"time"
)

const (
	quietAfter = 3 * time.Second // after a collection, with few allocations
	quietBytes = 4 << 20         // maximum of these allocations beside a small live heap
	quietShare = 32              // beside a large one, they may be one part of it in so many
	worthwhile = 24 << 20        // minimum size of free heap, or of touched pages of the binary
)

// giveBack releases memory to the system after a burst of work. The runtime keeps free memory of the size of the live heap for further
// work; if few allocations follow a collection for a while, no work follows. It ends with ctx.
//
// Worked example: a thousand pods start, 85 MB are live then, and the process has 230 MB. Three seconds after the end of the burst giveBack
// releases the free memory, and the process has 180 MB: the rest is on pages with live objects. Beside the 480 MB of 100,000 pods, up to
// 15 MB of allocations in three seconds are few: the next collection, after 128 MB of garbage, is half a minute away.
func giveBack(ctx context.Context, log *slog.Logger) {
	whenQuiet(ctx, quietAfter, worthwhile, func() {
		if err := trimMemory(); err != nil {
			log.Warn("Could not return free memory to the operating system", "error", err)
		}
	})
}

// whenQuiet calls free once when there were few allocations for a while, and then whenever that is so after a collection and enough memory
// is unused: free heap, and pages of files that were mapped since.
func whenQuiet(ctx context.Context, after time.Duration, enough uint64, free func()) {
	collected := make(chan struct{}, 1)
	announce(ctx, collected)
	quiet, first := time.After(after), true
	_, garbage := idle() // at the beginning of the quiet time
	var kept uint64      // pages of files after the last call of free
	for {
		select {
		case <-ctx.Done():
			return
		case <-collected:
			_, garbage = idle()
			quiet = time.After(after)
		case <-quiet:
			unused, now := idle()
			if now > garbage+few() {
				garbage, quiet = now, time.After(after)
				continue
			}
			mapped := mappedFiles()
			if quiet = nil; first || unused+now+max(mapped, kept)-kept >= enough {
				first = false
				free()
				kept = mappedFiles()
				select { // drops the announcement of the collection that free itself made
				case <-collected:
				case <-time.After(after):
				case <-ctx.Done():
				}
			}
		}
	}
}

// few returns how many bytes may be allocated in the time without work.
func few() uint64 {
	live, _ := heap()
	return max(quietBytes, live/quietShare)
}

// announce sends after each collection until ctx ends: each one collects an unreferenced object.
func announce(ctx context.Context, collected chan<- struct{}) {
	o := &struct{ b [16]byte }{}
	runtime.AddCleanup(o, func(context.Context) {
		select {
		case collected <- struct{}{}:
		default: // one is announced already
		}
		if ctx.Err() == nil {
			announce(ctx, collected)
		}
	}, ctx)
}

// idle returns the bytes of the process without objects, and the bytes of objects that were allocated since the last collection, or that it
// found dead and has not swept yet.
func idle() (unused, garbage uint64) {
	s := []metrics.Sample{{Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	unused, objects, live := s[0].Value.Uint64(), s[1].Value.Uint64(), s[2].Value.Uint64()
	return unused, max(objects, live) - live
}
