// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
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
// first of them 240 MB may wait, so the next comes 4 seconds later. When nothing is read any more, the collection that gives
// the memory back (see giveBack) finds that little was made, and the next comes at 120 MB again.
func paceCollections(ctx context.Context) {
	collected := make(chan struct{}, 1)
	announce(ctx, collected)
	now, then := usual, time.Now()
	_, before := heap()
	for {
		select {
		case <-ctx.Done():
			debug.SetGCPercent(usual)
			return
		case <-collected:
		}
		live, made := heap()
		want := percent(live, made-before, time.Since(then))
		before, then = made, time.Now()
		if want > now*5/4 || want < now*4/5 { // setting it stops the world for a moment
			debug.SetGCPercent(want)
			now = want
		}
	}
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

// heap is how many bytes live, as the last collection found, and how many were made since the process began.
func heap() (live, made uint64) {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64(), s[1].Value.Uint64()
}
