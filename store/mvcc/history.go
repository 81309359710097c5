// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package mvcc

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortise-dev/mortise/store"
)

const (
	eventShift    = 8    // events in a chunk, as a power of two
	positionShift = 6    // positions in a chunk of a bucket
	maxBuckets    = 1024 // the keys of further buckets are only in the whole stream
	viewEvents    = 256  // a superseded record loses its view after so many newer events
	eventOverhead = 160  // bytes that a superseded record costs besides key and value
)

// history is the list of events for watches and older reads, oldest first, with the waiting watchers. The publisher writes; readers take no
// lock.
type history struct {
	events    *stream[store.Event]
	everyone  topic                              // waits for any event
	buckets   atomic.Pointer[map[string]*bucket] // replaced as a whole when a bucket is added
	adding    sync.Mutex                         // held to add a bucket
	compacted atomic.Int64
	missed    atomic.Int64 // revision of the last Reset: the stream lacks changes up to it

	// Only the publisher uses these.
	marks *stream[mark]
	bytes int64 // of superseded records
}

// mark records when a revision was published, so that history can be bounded by time and read at a time.
type mark struct {
	at       int64 // in nanoseconds since 1970
	revision int64
}

// bucket is the events of the keys that share their first two segments, as positions in the whole stream.
type bucket struct {
	positions *stream[int64]
	topic     topic
}

// topic is a channel that is closed once, for all waiting goroutines; the next one to wait creates a new channel.
type topic struct {
	waiting atomic.Pointer[chan struct{}]
}

// wait returns a channel that the next wake closes. The caller checks again after it has the channel.
func (t *topic) wait() <-chan struct{} {
	for {
		if c := t.waiting.Load(); c != nil {
			return *c
		}
		c := make(chan struct{})
		if t.waiting.CompareAndSwap(nil, &c) {
			return c
		}
	}
}

func (t *topic) wake() {
	if t.waiting.Load() == nil {
		return
	}
	if c := t.waiting.Swap(nil); c != nil {
		close(*c)
	}
}

// bucketName returns the part of a key or prefix through the end of its second segment, "" if it has no such end:
// "/registry/pods/" of "/registry/pods/default/a", and of the prefix "/registry/pods/", but "" of "/registry/po".
func bucketName(key string) string {
	end := 0
	if strings.HasPrefix(key, "/") {
		end = 1
	}
	for range 2 {
		i := strings.IndexByte(key[end:], '/')
		if i < 0 {
			return ""
		}
		end += i + 1
	}
	return key[:end]
}

func newHistory(revision int64) *history {
	h := &history{events: newStream[store.Event](eventShift), marks: newStream[mark](eventShift)}
	h.buckets.Store(&map[string]*bucket{})
	h.compacted.Store(revision)
	return h
}

// bucket returns the bucket that holds all events under a key or prefix, nil if only the whole stream does.
func (h *history) bucket(prefix string) *bucket {
	name := bucketName(prefix)
	if name == "" {
		return nil
	}
	if b := (*h.buckets.Load())[name]; b != nil {
		return b
	}
	h.adding.Lock()
	defer h.adding.Unlock()
	old := *h.buckets.Load()
	if b := old[name]; b != nil || len(old) >= maxBuckets {
		return b
	}
	buckets := make(map[string]*bucket, len(old)+1)
	for name, b := range old {
		buckets[name] = b
	}
	b := &bucket{positions: newStream[int64](positionShift)}
	buckets[strings.Clone(name)] = b
	h.buckets.Store(&buckets)
	return b
}

// append adds the events of one group. They become visible when the head reaches their revision.
func (h *history) append(events []store.Event, touched map[*bucket]struct{}) {
	for _, e := range events {
		position := h.events.end.Load()
		h.events.append(e)
		if old, ok := h.events.at(max(position-viewEvents, 0)); ok && position >= viewEvents && old.Previous != nil {
			old.Previous.SetView(nil) // few watchers are so far behind, and they can create it again
		}
		h.bytes += cost(e.Previous)
		if b := h.bucket(e.Key); b != nil {
			b.positions.append(position)
			touched[b] = struct{}{}
		}
	}
}

func cost(r *store.Record) int64 {
	if r == nil {
		return eventOverhead / 2
	}
	return int64(len(r.Value)) + eventOverhead
}

// size returns how many bytes a live record counts for.
func size(r *store.Record) int64 { return int64(len(r.Key) + len(r.Value)) }

// note records when a revision was published, at most once a step; each if the step is negative. Times never decrease: a clock that was set
// back records nothing until it has caught up.
func (h *history) note(at time.Time, revision int64, step time.Duration) {
	end := h.marks.end.Load()
	if last, ok := h.mark(end - 1); ok && at.Sub(time.Unix(0, last.at)) < max(step, 0) {
		return
	}
	h.marks.append(mark{at: at.UnixNano(), revision: revision})
}

// mark returns the mark at a position, if it is kept.
func (h *history) mark(position int64) (mark, bool) {
	if position < h.marks.begin() {
		return mark{}, false
	}
	return h.marks.at(position)
}

// published returns the newest marked revision that was published at or before the time, 0 if none is known.
func (h *history) published(by time.Time) int64 {
	m, _ := h.mark(h.marks.search(h.marks.end.Load(), func(m mark) bool { return m.at > by.UnixNano() }) - 1)
	return m.revision
}

// trim drops the events up to and including revision.
func (h *history) trim(revision int64) {
	if revision <= h.compacted.Load() {
		return
	}
	h.compacted.Store(revision)
	h.marks.trim(h.marks.search(h.marks.end.Load(), func(m mark) bool { return m.revision >= revision }))
	from := h.events.begin()
	to := h.events.search(h.events.end.Load(), func(e store.Event) bool { return e.Revision > revision })
	for p := from; p < to; p++ {
		if e, ok := h.events.at(p); ok {
			h.bytes -= cost(e.Previous)
		}
	}
	for _, b := range *h.buckets.Load() {
		b.positions.trim(b.positions.search(b.positions.end.Load(), func(p int64) bool { return p >= to }))
	}
	h.events.trim(to)
}

// shrink returns the revision up to which events must be dropped so that superseded records take at most limit bytes.
func (h *history) shrink(limit int64) int64 {
	over := h.bytes - limit
	var revision int64
	for p, end := h.events.begin(), h.events.end.Load(); over > 0 && p < end; p++ {
		e, _ := h.events.at(p)
		over -= cost(e.Previous)
		revision = e.Revision
	}
	return revision
}
