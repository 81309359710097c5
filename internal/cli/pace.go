// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"log/slog"
	"math"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// By default, the garbage collector runs whenever the heap has doubled. A small server under load collects several times a second, and one
// request in fifty meets a collection, which makes the slowest requests. Under load that lasts, free memory is better spent on rare
// collections. A burst of work that is over after seconds keeps the default, or nearly so: the memory of its garbage would be resident for
// longer than the burst takes, and what lives after it would be scattered over all these pages.
const (
	often    = time.Second      // between collections at the default rate: only more frequent ones are made rarer
	apart    = 4 * time.Second  // between collections, if that does not take too much memory
	room     = 300 << 20        // maximum size of live heap and garbage together for that
	share    = 3                // of the bytes that were allocated lately, live heap and garbage may take one part in so many
	recently = 20 * time.Second // what was allocated so long ago counts 1/e of what is allocated now
	usual    = 100              // the default of GOGC: as much garbage as live heap
	spare    = 128 << 20        // garbage beside a large live heap, however large
	least    = 25               // but never less than this percentage
)

// paceCollections makes collections rarer under load, and restores the default rate without. It ends with ctx.
//
// Worked example: the live heap has 60 MB, and reads produce 60 MB of garbage a second, which would cause one collection a second. After
// six seconds, 360 MB have been allocated, of which 320 MB count, and 106 MB is a third: collections are still as frequent. After half a
// minute, 240 MB of garbage are allowed, so that the next one comes 4 seconds later. Without further reads, the collection that releases
// memory (see giveBack) finds little garbage, and the next one comes at 120 MB again.
//
// A large live heap may have less garbage than by default. Worked example: 500 MB live because there are 100,000 pods. By default,
// another 500 MB would be garbage before they are collected, and the pods that live would be scattered over both: after a burst, half of
// these pages could not be released. So 128 MB may be garbage, for more collections.
//
// The limit of garbage is a percentage of the live heap. If the heap suddenly is ten times as large, a high percentage would allow too much
// garbage until this function adjusts it. So meanwhile it also sets the runtime's memory limit.
//
// After a collection under load it also releases pages of the binary, if many were touched.
func paceCollections(ctx context.Context, log *slog.Logger) {
	collected := make(chan struct{}, 1)
	announce(ctx, collected)
	now, then := usual, time.Now()
	var limited uint64 // the live heap for which the limit was set
	last := sustained(usual)
	given := debug.SetMemoryLimit(-1) // from GOMEMLIMIT; usually none
	_, before := heap()
	lately := work(0)
	pages := binaryPages{log: log, kept: mappedFiles()}
	for {
		select {
		case <-ctx.Done():
			debug.SetGCPercent(usual)
			debug.SetMemoryLimit(given)
			return
		case <-collected:
		}
		live, made := heap()
		took := time.Since(then)
		want := last.and(percent(live, made-before, lately.and(made-before, took), took))
		before, then = made, time.Now()
		if outdated(now, want, limited, live) { // setting it stops the world for a moment
			debug.SetMemoryLimit(limit(want, live, held(), given))
			debug.SetGCPercent(want)
			now, limited = want, live
		}
		pages.trim(then)
	}
}

// work is how many bytes were allocated lately.
type work float64

// and counts bytes that were made since the last call, and returns how much live heap and garbage may take together.
func (w *work) and(made uint64, took time.Duration) uint64 {
	*w = *w*work(math.Exp(-took.Seconds()/recently.Seconds())) + work(made)
	return min(room, uint64(*w/share))
}

// binaryPages releases the pages of the binary that a load has touched, and those beside them that the kernel has mapped along: twice as
// many. The load's own come back at once, from the page cache.
type binaryPages struct {
	log  *slog.Logger
	kept uint64 // bytes that were resident after the last time
	last time.Time
}

// trim releases them if they are worthwhile, and if it has not done that for a while.
func (b *binaryPages) trim(now time.Time) {
	if now.Sub(b.last) < apart {
		return
	}
	mapped := mappedFiles()
	if b.kept = min(b.kept, mapped); mapped-b.kept < worthwhile {
		return
	}
	if err := trimBinary(); err != nil {
		b.log.Warn("Could not release pages of the binary", "error", err)
	}
	b.kept, b.last = mappedFiles(), now
}

// outdated reports whether the percentage that is set, and the memory limit for a live heap, do not fit any more. A heap that has outgrown
// the limit would be collected without end.
func outdated(now, want int, limited, live uint64) bool {
	return want > now*5/4 || want < now*4/5 || now > usual && live > limited+limited/4
}

// sustained is the percentage that the last collection needed. The first collection of a burst changes nothing: the burst is often over by
// the next one, and the live objects would be scattered over all the garbage.
type sustained int

// and takes the percentage for the next collection, and returns the one to set.
func (s *sustained) and(percent int) int {
	first := *s <= usual
	if *s = sustained(percent); first {
		return min(percent, usual)
	}
	return percent
}

// percent returns the garbage percentage until the next collection, given the garbage since the last one, the time since then, and how much
// live heap and garbage may take together.
func percent(live, made, together uint64, took time.Duration) int {
	if live == 0 || took <= 0 {
		return usual
	}
	without := withoutLoad(live)
	rate := float64(made) / took.Seconds()
	if rate*often.Seconds() < float64(live) {
		return without
	}
	wait := min(rate*apart.Seconds(), float64(together)-float64(live))
	return max(without, int(100*wait/float64(live)))
}

// withoutLoad returns the garbage percentage of a live heap that no load raises.
func withoutLoad(live uint64) int {
	if live <= spare {
		return usual
	}
	return max(least, int(usual*spare/live))
}

// limit returns the memory limit until the next collection, given the live heap and the memory of the runtime: both, the allowed garbage
// and half of that again, because close to the limit the runtime releases memory at once. With the default percentage, or less, the given
// limit stays.
func limit(percent int, live, held uint64, given int64) int64 {
	if percent <= usual {
		return given
	}
	return min(given, int64(min(held+live*uint64(percent)/200*3, math.MaxInt64)))
}

// held returns the number of bytes that the runtime has from the system, without those that it has released.
func held() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64() - s[1].Value.Uint64()
}

// heap returns the live bytes that the last collection found, and the bytes allocated since the process started.
func heap() (live, made uint64) {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64(), s[1].Value.Uint64()
}
