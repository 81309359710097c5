// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"math/bits"
	"sync/atomic"
)

// SizeClasses is the number of size classes of events: up to 1, 2, 4 … 128 KiB, and more.
const SizeClasses = 9

// Sent is the traffic of one watch since it was last added to its kind's [Traffic].
type Sent struct {
	Events, Bytes int64
	Sizes         [SizeClasses]int64
}

// Note counts an event of n bytes.
func (s *Sent) Note(n int) {
	s.Events++
	s.Bytes += int64(n)
	s.Sizes[min(bits.Len(uint(max(n-1, 0))>>10), SizeClasses-1)]++
}

// Traffic is the traffic of all watches of a version of a kind.
type Traffic struct {
	events, bytes, ended atomic.Int64
	sizes                [SizeClasses]atomic.Int64
}

// Add adds the traffic of a watch, and resets the watch's.
func (t *Traffic) Add(s *Sent) {
	if s.Events == 0 {
		return
	}
	t.events.Add(s.Events)
	t.bytes.Add(s.Bytes)
	for i, n := range s.Sizes {
		if n > 0 {
			t.sizes[i].Add(n)
		}
	}
	*s = Sent{}
}

// End counts a watch that was ended because its client was too slow.
func (t *Traffic) End() { t.ended.Add(1) }

// Total returns the traffic, and the number of watches that were ended.
func (t *Traffic) Total() (s Sent, ended int64) {
	s.Events, s.Bytes = t.events.Load(), t.bytes.Load()
	for i := range s.Sizes {
		s.Sizes[i] = t.sizes[i].Load()
	}
	return s, t.ended.Load()
}
