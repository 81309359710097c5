// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"math"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// By default, the garbage collector runs whenever the heap has doubled. A small server under load collects several times a second, and one
// request in fifty meets a collection, which makes the slowest requests. Under load, free memory is better spent on rare collections. A
// burst that makes less garbage, such as fifty pods that start, keeps the default: what lives after it would be scattered over the pages
// of the garbage, and these pages stay resident.
const (
	often = time.Second     // between collections at the default rate: only more frequent ones are made rarer
	apart = 4 * time.Second // between collections, if that does not take too much memory
	room  = 300 << 20       // maximum size of live heap and garbage together for that
	usual = 100             // the default of GOGC: as much garbage as live heap
)

// paceCollections makes collections rarer under load, and restores the default rate without. It ends with ctx.
//
// Worked example: the live heap has 60 MB, and reads produce 60 MB of garbage a second, which would cause one collection a second. After
// the second collection, 240 MB of garbage are allowed, so that the next one comes 4 seconds later. Without further reads, the collection
// that releases memory (see giveBack) finds little garbage, and the next one comes at 120 MB again.
//
// The limit of garbage is a percentage of the live heap. If the heap suddenly is ten times as large, a high percentage would allow too much
// garbage until this function adjusts it. So meanwhile it also sets the runtime's memory limit.
func paceCollections(ctx context.Context) {
	collected := make(chan struct{}, 1)
	announce(ctx, collected)
	now, then := usual, time.Now()
	last := sustained(usual)
	given := debug.SetMemoryLimit(-1) // from GOMEMLIMIT; usually none
	_, before := heap()
	for {
		select {
		case <-ctx.Done():
			debug.SetGCPercent(usual)
			debug.SetMemoryLimit(given)
			return
		case <-collected:
		}
		live, made := heap()
		want := last.and(percent(live, made-before, time.Since(then)))
		before, then = made, time.Now()
		if want > now*5/4 || want < now*4/5 { // setting it stops the world for a moment
			debug.SetMemoryLimit(limit(want, live, held(), given))
			debug.SetGCPercent(want)
			now = want
		}
	}
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

// percent returns the garbage percentage until the next collection, given the garbage since the last one and the time since then.
func percent(live, made uint64, took time.Duration) int {
	if live == 0 || took <= 0 {
		return usual
	}
	rate := float64(made) / took.Seconds()
	if rate*often.Seconds() < float64(live) {
		return usual
	}
	wait := min(rate*apart.Seconds(), float64(room)-float64(live))
	return max(usual, int(100*wait/float64(live)))
}

// limit returns the memory limit until the next collection, given the live heap and the memory of the runtime: both, the allowed garbage
// and half of that again, because close to the limit the runtime releases memory at once. With the default percentage, the given limit
// stays.
func limit(percent int, live, held uint64, given int64) int64 {
	if percent == usual {
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
