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
	quietAfter = 3 * time.Second // after a collection, with hardly anything made
	quietBytes = 4 << 20         // that may be made meanwhile
	worthwhile = 24 << 20        // bytes that nothing lives in, or of the binary's pages that work has touched
)

// giveBack returns memory to the system after a burst of work. The runtime keeps as much again as lives, for what comes
// next; when garbage was collected and then hardly more is made for a while, nothing comes. It ends with ctx.
//
// Worked example: a thousand pods come up, 85 MB live then, and the process stands at 230 MB. Three seconds after the last
// of the burst it gives back what is free, and stands at 180 MB: what is left is on pages that hold something living.
func giveBack(ctx context.Context, log *slog.Logger) {
	whenQuiet(ctx, quietAfter, worthwhile, func() {
		if err := trimMemory(); err != nil {
			log.Warn("Could not return free memory to the operating system", "error", err)
		}
	})
}

// whenQuiet calls free once when hardly anything was made for a while, and then whenever that is so after a collection and
// enough memory is not in use: heap that is free, and pages of files that came since.
func whenQuiet(ctx context.Context, after time.Duration, enough uint64, free func()) {
	collected := make(chan struct{}, 1)
	announce(ctx, collected)
	quiet, first := time.After(after), true
	_, garbage := idle() // when quiet began
	var kept uint64      // pages of files that the last free left
	for {
		select {
		case <-ctx.Done():
			return
		case <-collected:
			_, garbage = idle()
			quiet = time.After(after)
		case <-quiet:
			unused, now := idle()
			if now > garbage+quietBytes {
				garbage, quiet = now, time.After(after)
				continue
			}
			mapped := mappedFiles()
			if quiet = nil; first || unused+now+max(mapped, kept)-kept >= enough {
				first = false
				free()
				kept = mappedFiles()
				select { // the collection that this itself made
				case <-collected:
				case <-time.After(after):
				case <-ctx.Done():
				}
			}
		}
	}
}

// announce sends after each collection, until ctx ends: each collects an unreferenced object.
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

// idle is how many bytes the process has from the system that no object is in, and in how many are objects that were made
// since the last collection or found dead by it and not swept yet.
func idle() (unused, garbage uint64) {
	s := []metrics.Sample{{Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	unused, objects, live := s[0].Value.Uint64(), s[1].Value.Uint64(), s[2].Value.Uint64()
	return unused, max(objects, live) - live
}
