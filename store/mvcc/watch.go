// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package mvcc

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/mortise-dev/mortise/store"
)

const batchEvents = 512 // a batch ends with the revision after so many events

// cursor reads the events that may be under a prefix: a bucket's, or all.
type cursor struct {
	history *history
	bucket  *bucket // nil for all
}

func (d *DB) cursor(prefix string) cursor {
	return cursor{history: d.history, bucket: d.history.bucket(prefix)}
}

func (c cursor) topic() *topic {
	if c.bucket != nil {
		return &c.bucket.topic
	}
	return &c.history.everyone
}

func (c cursor) end() int64 {
	if c.bucket != nil {
		return c.bucket.positions.end.Load()
	}
	return c.history.events.end.Load()
}

// at returns the event at a position below end, or false if it is trimmed.
func (c cursor) at(p int64) (store.Event, bool) {
	if c.bucket != nil {
		position, ok := c.bucket.positions.at(p)
		if !ok {
			return store.Event{}, false
		}
		p = position
	}
	return c.history.events.at(p)
}

// after returns the first kept position below stop whose event is after revision, or stop.
func (c cursor) after(revision, stop int64) int64 {
	if c.bucket == nil {
		return c.history.events.search(stop, func(e store.Event) bool { return e.Revision > revision })
	}
	return c.bucket.positions.search(stop, func(p int64) bool {
		e, ok := c.history.events.at(p)
		return ok && e.Revision > revision
	})
}

// Watcher is a cursor over the history of a prefix. It implements [store.Watcher].
type Watcher struct {
	db       *DB
	prefix   string
	cursor   cursor
	position int64 // of the next event to look at
	seen     int64 // revision of the last batch, or where the watch began
	bookmark int64 // value of db.bookmark at the last batch; -1 before the first
	stop     chan struct{}
	stopping sync.Once
}

var _ store.Watcher = (*Watcher)(nil)

// Watch begins after the given revision.
func (d *DB) Watch(ctx context.Context, prefix string, after int64) (*Watcher, error) {
	if err := d.usable(ctx); err != nil {
		return nil, err
	}
	head := d.head.Load()
	if after > head.revision {
		return nil, fmt.Errorf("watch after revision %d of %d: %w", after, head.revision, store.ErrFuture)
	}
	w := &Watcher{db: d, prefix: prefix, cursor: d.cursor(prefix), seen: after, bookmark: -1, stop: make(chan struct{})}
	w.position = w.cursor.after(after, w.cursor.end())
	// Check last: this also finds history that was trimmed during the search for the position.
	if compacted := d.Compacted(); after < compacted {
		return nil, fmt.Errorf("watch after revision %d, history begins at %d: %w", after, compacted, store.ErrCompacted)
	}
	return w, nil
}

// Next blocks until there is a change after the last batch, or ctx is done. A watcher that is behind without events gets a bookmark from
// its first Next, and later when the engine asks for bookmarks.
func (w *Watcher) Next(ctx context.Context) (store.Batch, error) {
	for {
		if b, ok, err := w.read(); ok || err != nil {
			return b, err
		}
		woken := w.cursor.topic().wait()
		if b, ok, err := w.read(); ok || err != nil {
			return b, err
		}
		select {
		case <-woken:
		case <-ctx.Done():
			return store.Batch{}, ctx.Err()
		case <-w.stop:
			return store.Batch{}, store.ErrClosed
		case <-w.db.closed:
			return store.Batch{}, store.ErrClosed
		}
	}
}

// Close releases the cursor and ends a waiting Next.
func (w *Watcher) Close() { w.stopping.Do(func() { close(w.stop) }) }

// read returns the next batch if there is one.
func (w *Watcher) read() (store.Batch, bool, error) {
	select {
	case <-w.db.closed:
		return store.Batch{}, false, store.ErrClosed
	case <-w.stop:
		return store.Batch{}, false, store.ErrClosed
	default:
	}
	bookmark := w.db.bookmark.Load()
	batch := store.Batch{Revision: w.db.head.Load().revision} // read before the end of the stream, which has all events up to it
	stop := w.cursor.end()
	for ; w.position < stop; w.position++ {
		e, ok := w.cursor.at(w.position)
		if !ok {
			return store.Batch{}, false, fmt.Errorf("watch after revision %d, history begins at %d: %w", w.seen, w.db.Compacted(),
				store.ErrCompacted)
		}
		if e.Revision > batch.Revision {
			break
		}
		if n := len(batch.Events); n >= batchEvents && e.Revision != batch.Events[n-1].Revision {
			batch.Revision = batch.Events[n-1].Revision
			break
		}
		if strings.HasPrefix(e.Key, w.prefix) {
			batch.Events = append(batch.Events, e)
		}
	}
	if w.seen < w.db.history.missed.Load() {
		return store.Batch{}, false, fmt.Errorf("watch after revision %d, history begins at %d: %w", w.seen, w.db.Compacted(),
			store.ErrCompacted)
	}
	if len(batch.Events) == 0 && (batch.Revision <= w.seen || w.bookmark == bookmark) {
		return store.Batch{}, false, nil
	}
	w.seen, w.bookmark = batch.Revision, bookmark
	return batch, true, nil
}
