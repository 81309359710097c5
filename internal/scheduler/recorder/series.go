// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"time"
)

// How long after its last event a series ends, and how often the recorder writes the others. As in client-go.
const (
	finishTime  = 6 * time.Minute
	refreshTime = 30 * time.Minute
)

// series are events with the same key.
type series struct {
	happening       // with the first event's time and the second one's note
	count     int32 // of its events
	seen      int64 // the time of the last event
}

// recent holds the times of single events by key: those of the last finishTime and perhaps others up to twice as old. Once in a finishTime
// the newer ones become the older ones, and those are dropped as a whole: a map that only loses entries keeps its size.
type recent struct{ newer, older map[key]int64 }

func newRecent() recent { return recent{newer: map[key]int64{}} }

// first returns the time of a single event with the key.
func (r *recent) first(k key, now int64) (at int64, ok bool) {
	if at, ok = r.newer[k]; !ok {
		at, ok = r.older[k]
	}
	return at, ok && now-at <= int64(finishTime)
}

// record adds a write for a new event, or counts it. At twice the bound it waits until there is room or the recorder ends.
func (r *Recorder) record(h happening, now int64) {
	k := h.key()
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.pending >= 2*r.bound && !r.over {
		r.room.Wait()
	}
	if r.over {
		return
	}
	if s := r.series[k]; s != nil {
		s.count++
		s.seen = max(s.seen, now)
		return
	}
	if first, ok := r.recent.first(k, now); ok {
		h.at = first
		s := &series{h, 2, now}
		r.series[k] = s
		r.add(s.write(k))
	} else {
		r.last = max(now, r.last+1)
		h.at = r.last
		r.recent.newer[k] = h.at
		r.add(&write{key: k, happening: h})
	}
	r.call()
}

// write returns a write of the series' current state.
func (s *series) write(k key) *write {
	return &write{key: k, happening: s.happening, count: s.count, seen: s.seen}
}

// end ends a series that the server refuses: the recorder does not write its count again.
func (r *Recorder) end(k key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.series, k)
}

// sweepFrom sweeps the series until ctx is done.
func (r *Recorder) sweepFrom(ctx context.Context) {
	timer := r.clock.NewTimer(finishTime)
	defer timer.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
			timer.Reset(finishTime)
			r.sweep(r.clock.Now().UnixNano(), n%int(refreshTime/finishTime) == 0)
		}
	}
}

// sweep drops old entries. It writes the series that have ended, or all of them, whatever the bound.
func (r *Recorder) sweep(now int64, all bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recent = recent{map[key]int64{}, r.recent.newer}
	for k, s := range r.series {
		ended := now-s.seen > int64(finishTime)
		if ended {
			delete(r.series, k)
		}
		if ended || all {
			r.add(s.write(k))
		}
	}
	r.call()
}
