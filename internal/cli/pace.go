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

// The runtime collects whenever as much was made again as lives. A small server under much load so collects some times a
// second, and one request in fifty meets a collection, which is what its slowest ones are made of. Memory that is free while
// there is much to do is better spent on making that rare.
const (
	apart = 4 * time.Second // between collections, if that does not take too much
	room  = 300 << 20       // bytes that may live and wait to be collected together, for that
	usual = 100             // the runtime's own: as much waits as lives
)

// paceCollections puts collections further apart while much is made, and back when not. It ends with ctx.
//
// Worked example: 60 MB live, and reads make 60 MB of garbage a second, which would be a collection a second. After the
// second of them 240 MB may wait, so the next comes 4 seconds later. When nothing is read any more, the collection that gives
// the memory back (see giveBack) finds that little was made, and the next comes at 120 MB again.
//
// The garbage that may accumulate is a share of the live heap; when the heap suddenly is ten times as large, a large share
// of it would accumulate before this function adjusts the share. So for as long it also sets the runtime's total memory
// limit.
func paceCollections(ctx context.Context) {
	collected := make(chan struct{}, 1)
	announce(ctx, collected)
	now, then := usual, time.Now()
	last := sustained(usual)
	given := debug.SetMemoryLimit(-1) // by GOMEMLIMIT; usually none
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

// sustained is what the last collection asked for. The first one of a burst gets nothing: the burst is often over by the next one, and what
// lives then lies scattered over all that was waiting.
type sustained int

// and takes what the next collection asks for, and returns what it gets.
func (s *sustained) and(percent int) int {
	first := *s <= usual
	if *s = sustained(percent); first {
		return min(percent, usual)
	}
	return percent
}

// percent is how much of what lives may be made before the next collection, when so much was made since the last one, that
// long ago.
func percent(live, made uint64, took time.Duration) int {
	if live == 0 || took <= 0 {
		return usual
	}
	wait := min(float64(made)/took.Seconds()*apart.Seconds(), float64(room)-float64(live))
	return max(usual, int(100*wait/float64(live)))
}

// limit is how many bytes the runtime may hold until the next collection, when so many live and it holds so many: those, and what
// may wait and half as much again, since near its limit it gives back what it needs at once. There is none but the given one where
// collections come as usual.
func limit(percent int, live, held uint64, given int64) int64 {
	if percent == usual {
		return given
	}
	return min(given, int64(min(held+live*uint64(percent)/200*3, math.MaxInt64)))
}

// held is how many bytes the runtime has of the system, without those that it gave back.
func held() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64() - s[1].Value.Uint64()
}

// heap is how many bytes live, as the last collection found, and how many were made since the process began.
func heap() (live, made uint64) {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64(), s[1].Value.Uint64()
}
