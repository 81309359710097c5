// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/etcd"
)

// history is what clients of several engines on one etcd did and saw, to be judged at the end:
//
//   - An operation has the revision of its write, or of its read. One that began after another returned has no lower revision, whichever
//     engine it used. A read's record is what the events up to its revision left in the key. Both together mean linearizable: revisions
//     order all operations.
//   - Every acknowledged write is an event of its revision.
//   - The watchers saw the same events, in ascending revisions, each once, and each event's previous record is the key's last one.
type history struct {
	mu   sync.Mutex
	ops  []operation
	told chan struct{} // closed when an operation is added
}

type operation struct {
	call, back time.Duration
	key        string
	write      bool
	revision   int64
	record     int64 // revision of the record: read, or written; 0 for none
}

func newHistory() *history { return &history{told: make(chan struct{})} }

func (h *history) add(o operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, o)
	close(h.told)
	h.told = make(chan struct{})
}

// writes waits until n more writes were acknowledged.
func (h *history) writes(t *testing.T, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	h.mu.Lock()
	begin := len(h.ops)
	h.mu.Unlock()
	for {
		h.mu.Lock()
		acknowledged := 0
		for _, o := range h.ops[begin:] {
			if o.write {
				acknowledged++
			}
		}
		told := h.told
		h.mu.Unlock()
		if acknowledged >= n {
			return
		}
		select {
		case <-told:
		case <-ctx.Done():
			t.Fatalf("%d writes of %d in %v", acknowledged, n, limit)
		}
	}
}

// client writes and reads keys of its own and shared ones until stop is closed. Unknown outcomes are allowed; other errors are not.
func (h *history) client(t *testing.T, e *etcd.Engine, id int, began time.Time, stop <-chan struct{}) {
	known := map[string]int64{}
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		key := fmt.Sprintf("/registry/configmaps/shared/%d", i%5)
		if i%3 > 0 {
			key = fmt.Sprintf("/registry/configmaps/own-%d/%d", id, i%4)
		}
		o := operation{key: key, call: time.Since(began)}
		if i%4 == 3 {
			r, revision, err := e.Get(t.Context(), key)
			if err != nil {
				t.Errorf("get %s: %v", key, err)
				return
			}
			o.back, o.revision = time.Since(began), revision
			if r != nil {
				o.record = r.Revision
			}
			known[key] = o.record
			h.add(o)
			continue
		}
		op := store.Op{Key: key, Expect: known[key], Value: fmt.Appendf(nil, "%d.%d", id, i)}
		if i%11 == 10 && known[key] > 0 {
			op.Value = nil
		}
		revision, records, err := e.Commit(t.Context(), op)
		o.back = time.Since(began)
		var conflict *store.ConflictError
		switch {
		case errors.As(err, &conflict) && !errors.Is(err, store.ErrUnknown):
			known[key] = 0
			if conflict.Current != nil {
				known[key] = conflict.Current.Revision
			}
			continue
		case errors.Is(err, store.ErrUnknown):
			continue // the next conflict tells
		case err != nil:
			t.Errorf("commit %s: %v", key, err)
			return
		}
		o.write, o.revision = true, revision
		if records[0] != nil {
			o.record = records[0].Revision
		}
		known[key] = o.record
		h.add(o)
	}
}

// watch collects all events after a revision until it has seen the final one, which last sends.
func watch(t *testing.T, e *etcd.Engine, after int64, last <-chan int64) (events []store.Event) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w, err := e.Watch(ctx, "/registry/", after)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer w.Close()
	final := int64(-1)
	go func() {
		final := <-last
		for e.Revision() < final && ctx.Err() == nil {
			_, _, _ = e.Get(ctx, "/registry/end") // waits for the mirror
		}
		e.Bookmark()
	}()
	for {
		b, err := w.Next(ctx)
		if err != nil {
			t.Errorf("watch: %v", err)
			return events
		}
		events = append(events, b.Events...)
		for _, event := range b.Events {
			if event.Key == "/registry/end" {
				final = event.Revision
			}
		}
		if final > 0 && b.Revision >= final {
			return events
		}
	}
}

// judge compares what was done with what was seen.
func (h *history) judge(t *testing.T, seen [][]store.Event) {
	t.Helper()
	events := seen[0]
	for i, other := range seen[1:] {
		if len(other) != len(events) {
			t.Errorf("watcher %d saw %d events, the first one %d", i+1, len(other), len(events))
			return
		}
		for j := range other {
			if other[j].Revision != events[j].Revision || other[j].Key != events[j].Key {
				t.Fatalf("watcher %d: event %d is %d %s, the first one's %d %s", i+1, j, other[j].Revision, other[j].Key,
					events[j].Revision, events[j].Key)
			}
		}
	}
	states := map[string][]store.Event{} // by key
	byRevision := map[int64]store.Event{}
	for i, e := range events {
		if i > 0 && e.Revision <= events[i-1].Revision {
			t.Fatalf("event of revision %d after %d", e.Revision, events[i-1].Revision)
		}
		var previous, before int64
		if e.Previous != nil {
			previous = e.Previous.Revision
		}
		if n := len(states[e.Key]); n > 0 && states[e.Key][n-1].Record != nil {
			before = states[e.Key][n-1].Revision
		}
		if previous != before {
			t.Fatalf("event %d of %s: the previous record is of %d, the last event's of %d", e.Revision, e.Key, previous, before)
		}
		states[e.Key] = append(states[e.Key], e)
		byRevision[e.Revision] = e
	}
	slices.SortFunc(h.ops, func(a, b operation) int { return int(a.call - b.call) })
	byReturn := slices.SortedFunc(slices.Values(h.ops), func(a, b operation) int { return int(a.back - b.back) })
	var newest int64
	returned, reads := 0, 0
	for _, o := range h.ops {
		for returned < len(byReturn) && byReturn[returned].back < o.call {
			newest = max(newest, byReturn[returned].revision)
			returned++
		}
		if o.revision < newest {
			t.Fatalf("%+v is stale: %d had been returned before", o, newest)
		}
		if o.write {
			if e, ok := byRevision[o.revision]; !ok || e.Key != o.key || (e.Record == nil) != (o.record == 0) {
				t.Fatalf("%+v was acknowledged, the event of its revision is %+v", o, e)
			}
			continue
		}
		reads++
		var record int64
		for _, e := range states[o.key] {
			if e.Revision > o.revision {
				break
			}
			record = 0
			if e.Record != nil {
				record = e.Revision
			}
		}
		if record != o.record {
			t.Fatalf("%+v: at its revision the key had the record of %d", o, record)
		}
	}
	t.Logf("%d acknowledged writes and %d reads, %d events, %d watchers", len(h.ops)-reads, reads, len(events), len(seen))
}
