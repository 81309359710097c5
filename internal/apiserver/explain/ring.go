// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"encoding/binary"
	"sync"
)

// ring keeps the newest records that fit into its bound. They are stored in segments, each record after its length in
// four bytes. When a new segment does not fit, the oldest one is dropped.
//
// A segment's bytes are written once and do not change while readers may use them, so that readers need the lock only
// to list the segments. A dropped segment is reused if no reader has used it.
type ring struct {
	bound   int64
	segment int

	mu       sync.Mutex
	segments [][]byte
	size     int64 // of all segments, full or not
	count    int
	counts   []int // number of records by segment
	read     int   // number of the oldest segments that readers received
	spare    []byte
}

// lengthBytes is the size of a record's length.
const lengthBytes = 4

// add stores a record, which must be shorter than the bound.
func (r *ring) add(record []byte) bool {
	need := len(record) + lengthBytes
	if int64(need) > r.bound {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	last := len(r.segments) - 1
	if last < 0 || cap(r.segments[last])-len(r.segments[last]) < need {
		size := max(r.segment, need)
		for r.size+int64(size) > r.bound && len(r.segments) > 0 {
			r.drop()
		}
		next := r.spare
		if r.spare = nil; cap(next) != size {
			next = make([]byte, 0, size)
		}
		r.segments, r.counts = append(r.segments, next), append(r.counts, 0)
		r.size += int64(size)
		last = len(r.segments) - 1
	}
	s := binary.BigEndian.AppendUint32(r.segments[last], uint32(len(record)))
	r.segments[last] = append(s, record...)
	r.counts[last]++
	r.count++
	return true
}

// drop drops the oldest segment.
func (r *ring) drop() {
	r.size -= int64(cap(r.segments[0]))
	r.count -= r.counts[0]
	if r.read > 0 {
		r.read--
	} else {
		r.spare = r.segments[0][:0]
	}
	r.segments[0] = nil
	r.segments, r.counts = r.segments[1:], r.counts[1:]
}

// kept returns the current segments, oldest first.
func (r *ring) kept() [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.read = len(r.segments)
	return append([][]byte(nil), r.segments...)
}

// totals returns the number of records and their size.
func (r *ring) totals() (count int, size int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count, r.size
}

// each calls f for every record, the oldest first, until f returns false.
func (r *ring) each(f func(record []byte) bool) {
	for _, s := range r.kept() {
		for len(s) >= lengthBytes {
			n := int(binary.BigEndian.Uint32(s))
			if n > len(s)-lengthBytes {
				break
			}
			if !f(s[lengthBytes : lengthBytes+n]) {
				return
			}
			s = s[lengthBytes+n:]
		}
	}
}
